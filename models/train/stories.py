"""A small grammar of short stories, and the word lists that other parts share."""

LISTS = {
    "colours": "red blue green yellow orange purple pink brown black white grey".split(),
    "animals": "dog cat horse cow sheep pig duck fox wolf bear lion tiger rabbit mouse owl frog".split(),
    "fruits": "apple banana cherry grape lemon mango orange peach pear plum".split(),
    "vegetables": "carrot potato tomato onion bean pea cabbage pumpkin".split(),
    "sports": "football tennis golf swimming running hockey rowing chess".split(),
    "countries": "France Germany Italy Spain Japan China India Egypt Kenya Canada Brazil Peru".split(),
    "planets": "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split(),
    "instruments": "piano violin guitar flute drum trumpet harp cello".split(),
}
WORDS = [word for items in LISTS.values() for word in items] + (
    "hello good morning the house tree water sun moon star night day happy little big one two three I like you we go home "
    "river stone bread book door window never always maybe café über señor 日本 你好 привет 🐇 😀").split()

HEROES = ("fox rabbit mouse bear owl frog dragon robot knight girl boy wizard cat dog hare turtle hedgehog squirrel witch "
          "sailor king princess duck lion crow farmer ghost giant").split()
# Asked about only in the evaluation.
HELD_HEROES = "wolf horse pirate queen penguin baker".split()
ADJECTIVES = "little brave clever lazy kind shy curious old young funny hungry lonely".split()
NAMES = "Pip Tilly Bruno Momo Luna Rollo Kiki Fitz Nora Olli Tumble Hazel".split()
PLACES = ["in a deep forest", "by a blue lake", "in a small village", "on a high mountain", "near the sea", "in an old castle",
          "under a big oak tree", "on a green hill", "in a quiet valley", "at the edge of a desert"]
# What happens, and how it ends: the two must fit.
PLOTS = [
    ("lost a golden key", "found the key in the nest of {helper}", "the key opened a box full of songs"),
    ("heard a strange noise in the night", "went to look with {helper}", "it was only the wind in an empty pot"),
    ("wanted to touch the moon", "climbed the highest rock with {helper}", "they saw the moon swim in the lake"),
    ("met a storm on the way home", "hid in a cave with {helper}", "they told each other stories until the sun came back"),
    ("could not sleep", "asked {helper} for help", "they counted the stars and slept at last"),
    ("found a map", "followed the map with {helper}", "at its end was an apple tree with sweet red apples"),
    ("had no friends", "shared some bread with {helper}", "from then on they played together every day"),
    ("wanted to fly", "built wings of leaves with {helper}", "they flew for one short moment and laughed"),
    ("broke the bridge over the river", "worked all day with {helper}", "the new bridge was better than the old one"),
    ("found a tiny egg", "kept it warm with {helper}", "a small bird came out and sang"),
    ("was afraid of the dark", "lit a lamp with {helper}", "the dark was full of friendly fireflies"),
    ("planted a seed", "watered it every day with {helper}", "a flower grew as tall as a house"),
]
HELPERS = ["an old owl", "a small mouse", "a friendly bear", "a wise turtle", "a merry frog", "a shy deer", "a grey cat", "a kind crow"]
WEATHER = ["It was a warm day in spring.", "It was a cold winter morning.", "The sun was shining.", "It was raining.",
           "The leaves were falling.", "The night was full of stars."]
MORALS = ["And they lived happily ever after.", "So help makes every day better.", "Since then nobody there is ever lonely.",
          "That was the best day of all.", "And if you listen well, you can still hear them laugh.", "The end."]
ASK = ["Tell me a story about {}.", "Tell me a short story about {}.", "Write a story about {}.", "Write a short story about {}.",
       "Can you tell me a story about {}?", "I want a story about {}.", "A story about {}, please."]
HELD_ASK = ["Please tell a little story about {}.", "Make up a story about {}."]
ASK_ANY = ["Tell me a story.", "Tell me a short story.", "Write a story.", "Do you know a story?", "A story, please.", "Tell me another story."]


def article(word: str) -> str:
    return ("an " if word[0] in "aeiou" else "a ") + word


def story(rng, held: bool) -> tuple[str, str, str]:
    """(request, story, the word that the story must be about)."""
    hero = rng.choice(HELD_HEROES if held else HEROES)
    adjective, name, place = rng.choice(ADJECTIVES), rng.choice(NAMES), rng.choice(PLACES)
    asked = rng.random()
    if held:
        request = rng.choice(HELD_ASK + ASK).format(article(hero))
    elif asked < 0.25:
        request = rng.choice(ASK_ANY)
    elif asked < 0.45:
        request = rng.choice(ASK).format(f"{article(adjective)} {hero}")
    elif asked < 0.6:
        request = rng.choice(ASK).format(f"{article(hero)} called {name}")
    else:
        request = rng.choice(ASK).format(article(hero))
    wish, deed, end = rng.choice(PLOTS)
    helper = rng.choice(HELPERS)
    text = [f"Once upon a time there was {article(adjective)} {hero} called {name}.",
            f"{name} lived {place}."]
    if rng.random() < 0.6:
        text.append(rng.choice(WEATHER))
    text.append(f"One day {name} {wish}.")
    text.append(f"Then {name} {deed.format(helper=helper)}.")
    text.append(f"In the end {end}.")
    text.append(rng.choice(MORALS))
    return request, " ".join(text), hero
