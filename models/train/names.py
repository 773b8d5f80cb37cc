"""Names of people and assistants: common ones, and invented ones so that copying is learnt rather than a list."""

COMMON = ("Bob Alice Tom Anna Ben Clara David Emma Felix Greta Hugo Ida Jack Kate Leo Maria Noah Olga Paul Rosa Sam Tina "
          "Victor Wendy Max Mia Otto Ruth Simon Vera Adam Eva Karl Lena Nina Oscar Peter Sarah Lucy Henry James John Mary "
          "Linda Robert Michael Susan Lisa Mark Laura George Helen Frank Julia Daniel Sophie Aisha Omar Yuki Ravi Chen "
          "Priya Ivan Sofia Diego Carmen Fatima Ali Kenji Mei").split()
# Never in training: the evaluation's names.
HELD_NAMES = ("Arthur Bella Conrad Dora Edgar Flora Gustav Hilda Igor Jenny Kevin Lotte Martha Norbert Pia Quentin Rita "
              "Stella Theo Ursula Winston Xenia Zara Zoltan Marvin Ophelia").split()

STARTS = "B Br C D Dr F G Gr H J K Kr L M N P Pr R S Sh T Tr V W Z".split()
VOWELS = "a e i o u ai ee ia".split()
MIDDLES = "b d l ll m n nd r rr s t v k lm nt rk st".split()
ENDS = "a o i e in on us ar el is ax an or".split()


def invented(rng) -> str:
    name = rng.choice(STARTS) + rng.choice(VOWELS) + rng.choice(MIDDLES)
    if rng.random() < 0.3:
        name += rng.choice(VOWELS[:5]) + rng.choice(MIDDLES[:9])
    return name + rng.choice(ENDS)


def random_name(rng, held=False) -> str:
    if held:
        return rng.choice(HELD_NAMES)
    while True:
        name = rng.choice(COMMON) if rng.random() < 0.45 else invented(rng)
        if name not in HELD_NAMES:
            return name
