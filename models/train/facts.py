"""Everything the little model is taught to know: plain tables, no logic.

A domain is a table of pairs `(a, b)` with ways to ask for `b` given `a`. `HELD` phrasings are never used in
training: the evaluation asks with them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    name: str
    pairs: list[tuple[str, str]]
    ask: list[str]
    held: list[str]
    say: str


def table(text: str) -> list[tuple[str, str]]:
    """Parses `a=b, c=d` into pairs."""
    return [tuple(part.strip().split("=")) for part in text.replace("\n", " ").split(",") if part.strip()]


CAPITALS = table("""France=Paris, Germany=Berlin, Italy=Rome, Spain=Madrid, Portugal=Lisbon, Austria=Vienna,
Belgium=Brussels, Greece=Athens, Poland=Warsaw, Sweden=Stockholm, Norway=Oslo, Finland=Helsinki, Ireland=Dublin,
Hungary=Budapest, Turkey=Ankara, Russia=Moscow, England=London, Japan=Tokyo, China=Beijing, India=New Delhi,
Thailand=Bangkok, Egypt=Cairo, Kenya=Nairobi, Canada=Ottawa, Mexico=Mexico City, Cuba=Havana, Brazil=Brasilia,
Argentina=Buenos Aires, Peru=Lima, Australia=Canberra""")

CONTINENTS = table("""France=Europe, Germany=Europe, Italy=Europe, Spain=Europe, Poland=Europe, Sweden=Europe, Japan=Asia,
China=Asia, India=Asia, Thailand=Asia, Egypt=Africa, Kenya=Africa, Canada=North America, Mexico=North America,
Brazil=South America, Peru=South America""")

LANGUAGES = table("""France=French, Germany=German, Italy=Italian, Spain=Spanish, Greece=Greek, Poland=Polish, Sweden=Swedish,
Turkey=Turkish, Russia=Russian, England=English, Japan=Japanese, China=Chinese""")

SYMBOLS = table("""hydrogen=H, helium=He, carbon=C, nitrogen=N, oxygen=O, neon=Ne, sodium=Na, silicon=Si, chlorine=Cl, calcium=Ca,
iron=Fe, copper=Cu, zinc=Zn, silver=Ag, gold=Au, lead=Pb""")

COLOURS = table("""grass=green, snow=white, the sky=blue, the sun=yellow, a banana=yellow, blood=red, coal=black, a lemon=yellow,
a carrot=orange, a tomato=red, milk=white, chocolate=brown, a frog=green, a flamingo=pink, the sea=blue, a crow=black,
a polar bear=white, an elephant=grey, a strawberry=red, a violet=purple""")

SOUNDS = table("""cow=moo, dog=woof, cat=meow, sheep=baa, duck=quack, pig=oink, horse=neigh, lion=roar, bee=buzz,
snake=hiss, owl=hoot, mouse=squeak, frog=ribbit, rooster=cock-a-doodle-doo""")

BABIES = table("""dog=puppy, cat=kitten, cow=calf, sheep=lamb, horse=foal, pig=piglet, duck=duckling, bear=cub, lion=cub, hen=chick,
frog=tadpole, goose=gosling""")

LEGS = table("""dog=4, cat=4, horse=4, bird=2, spider=8, ant=6, bee=6, snake=0, fish=0, human=2, duck=2, cow=4, octopus=8,
beetle=6, chicken=2, frog=4""")

OPPOSITES = table("""hot=cold, big=small, up=down, left=right, fast=slow, old=new, happy=sad, light=dark, wet=dry, full=empty,
hard=soft, open=closed, early=late, rich=poor, strong=weak, good=bad, loud=quiet, long=short""")

PLURALS = table("""mouse=mice, child=children, foot=feet, tooth=teeth, goose=geese, man=men, woman=women, sheep=sheep,
leaf=leaves, wolf=wolves, city=cities, box=boxes""")

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
NUMBER_WORDS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
                "seventeen eighteen nineteen twenty").split()


def following(items: list[str]) -> list[tuple[str, str]]:
    return [(item, items[(i + 1) % len(items)]) for i, item in enumerate(items)]


def preceding(items: list[str]) -> list[tuple[str, str]]:
    return [(item, items[i - 1]) for i, item in enumerate(items)]


def swapped(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(b, a) for a, b in pairs]


DOMAINS = [
    Domain("capitals", CAPITALS,
           ["What is the capital of {a}?", "Which city is the capital of {a}?", "Tell me the capital of {a}.",
            "Do you know the capital of {a}?", "Capital of {a}?", "What is the capital city of {a}?"],
           ["Can you name the capital of {a}?", "I forgot the capital of {a}. What is it?"],
           "The capital of {a} is {b}."),
    Domain("capitals", swapped(CAPITALS),
           ["Which country has the capital {a}?", "{a} is the capital of which country?", "Of which country is {a} the capital?"],
           ["What country is {a} the capital of?"],
           "{a} is the capital of {b}."),
    Domain("continents", CONTINENTS,
           ["On which continent is {a}?", "Which continent is {a} in?", "Where is {a}?"],
           ["Tell me on which continent {a} is."],
           "{a} is in {b}."),
    Domain("languages", LANGUAGES,
           ["Which language do people speak in {a}?", "What language is spoken in {a}?", "What do they speak in {a}?"],
           ["Tell me which language people speak in {a}."],
           "In {a} people speak {b}."),
    Domain("chemistry", SYMBOLS,
           ["What is the chemical symbol for {a}?", "What is the symbol of {a}?", "Which symbol does {a} have?"],
           ["Tell me the chemical symbol of {a}."],
           "The chemical symbol for {a} is {b}."),
    Domain("colours", COLOURS,
           ["What colour is {a}?", "Which colour is {a}?", "What is the colour of {a}?", "What color is {a}?"],
           ["Tell me the colour of {a}.", "Which color does {a} have?"],
           "The colour of {a} is {b}."),
    Domain("animals", SOUNDS,
           ["What does a {a} say?", "Which sound does a {a} make?", "What sound does the {a} make?"],
           ["Tell me which sound a {a} makes."],
           "The {a} says {b}!"),
    Domain("animals", BABIES,
           ["What is a baby {a} called?", "What do you call a young {a}?", "What is the name for a baby {a}?"],
           ["Tell me what a baby {a} is called."],
           "A baby {a} is called a {b}."),
    Domain("animals", LEGS,
           ["How many legs does a {a} have?", "How many legs has a {a}?", "A {a} has how many legs?"],
           ["Tell me how many legs a {a} has."],
           "A {a} has {b} legs."),
    Domain("words", OPPOSITES + [(b, a) for a, b in OPPOSITES if b != "old"],
           ["What is the opposite of {a}?", "Opposite of {a}?", "Which word is the opposite of {a}?"],
           ["Tell me the opposite of {a}."],
           "The opposite of {a} is {b}."),
    Domain("words", PLURALS,
           ["What is the plural of {a}?", "Plural of {a}?", "One {a}, two what?"],
           ["Tell me the plural of {a}."],
           "The plural of {a} is {b}."),
    Domain("calendar", following(DAYS) + following(MONTHS),
           ["What comes after {a}?", "Which one comes after {a}?", "What follows {a}?", "{a} is followed by what?"],
           ["Tell me what comes after {a}."],
           "After {a} comes {b}."),
    Domain("calendar", preceding(DAYS) + preceding(MONTHS),
           ["What comes before {a}?", "Which one comes before {a}?", "What is right before {a}?"],
           ["Tell me what comes before {a}."],
           "Before {a} comes {b}."),
]

# Questions with one fixed answer: (train phrasings, held phrasing, answer, words that must occur).
SINGLES = [
    (["How many days are in a week?", "How many days does a week have?"], "Tell me how many days a week has.", "A week has 7 days.", ["7"]),
    (["How many months are in a year?", "How many months does a year have?"], "Tell me how many months a year has.", "A year has 12 months.", ["12"]),
    (["How many hours are in a day?", "How many hours does a day have?"], "Tell me how many hours a day has.", "A day has 24 hours.", ["24"]),
    (["How many minutes are in an hour?", "How many minutes does an hour have?"], "Tell me how many minutes an hour has.", "An hour has 60 minutes.", ["60"]),
    (["How many seconds are in a minute?", "How many seconds does a minute have?"], "Tell me how many seconds a minute has.", "A minute has 60 seconds.", ["60"]),
    (["How many days are in a year?", "How many days does a year have?"], "Tell me how many days a year has.", "A year has 365 days.", ["365"]),
    (["What are the days of the week?", "Name the days of the week.", "List the days of the week."], "Tell me the days of the week.", "The days of the week are " + ", ".join(DAYS[:-1]) + " and Sunday.", DAYS),
    (["What are the months of the year?", "Name the months of the year.", "List the months of the year."], "Tell me the months of the year.", "The months of the year are " + ", ".join(MONTHS[:-1]) + " and December.", MONTHS),
    (["What are the planets?", "Name the planets.", "List the planets of the solar system."], "Tell me the planets.", "The planets are " + ", ".join(PLANETS[:-1]) + " and Neptune.", PLANETS),
    (["What are the seasons?", "Name the four seasons.", "List the seasons."], "Tell me the seasons.", "The seasons are spring, summer, autumn and winter.", ["spring", "winter"]),
    (["Which is the largest planet?", "What is the biggest planet?"], "Tell me the largest planet.", "The largest planet is Jupiter.", ["Jupiter"]),
    (["Which planet do we live on?", "What planet are we on?"], "Tell me which planet we live on.", "We live on Earth.", ["Earth"]),
    (["Which is the largest animal?", "What is the biggest animal?"], "Tell me the largest animal.", "The largest animal is the blue whale.", ["whale"]),
    (["Which is the tallest animal?", "What is the tallest animal?"], "Tell me the tallest animal.", "The tallest animal is the giraffe.", ["giraffe"]),
    (["What is the fastest animal on land?", "Which land animal is the fastest?"], "Tell me the fastest animal on land.", "The fastest animal on land is the cheetah.", ["cheetah"]),
    (["What is the largest ocean?", "Which ocean is the biggest?"], "Tell me the largest ocean.", "The largest ocean is the Pacific Ocean.", ["Pacific"]),
    (["What is the longest river?", "Which river is the longest?"], "Tell me the longest river.", "The longest river is the Nile.", ["Nile"]),
    (["What is the highest mountain?", "Which mountain is the highest?"], "Tell me the highest mountain.", "The highest mountain is Mount Everest.", ["Everest"]),
    (["What is water made of?", "What is H2O?"], "Tell me what water is made of.", "Water is made of hydrogen and oxygen.", ["hydrogen", "oxygen"]),
    (["At what temperature does water boil?", "When does water boil?"], "Tell me when water boils.", "Water boils at 100 degrees Celsius.", ["100"]),
    (["At what temperature does water freeze?", "When does water freeze?"], "Tell me when water freezes.", "Water freezes at 0 degrees Celsius.", ["0"]),
    (["What do bees make?", "What do bees produce?"], "Tell me what bees make.", "Bees make honey.", ["honey"]),
    (["What do cows give us?", "What do we get from cows?"], "Tell me what cows give us.", "Cows give us milk.", ["milk"]),
    (["Who wrote Romeo and Juliet?", "Who is the author of Romeo and Juliet?"], "Tell me who wrote Romeo and Juliet.", "William Shakespeare wrote Romeo and Juliet.", ["Shakespeare"]),
    (["Who painted the Mona Lisa?", "Which painter made the Mona Lisa?"], "Tell me who painted the Mona Lisa.", "Leonardo da Vinci painted the Mona Lisa.", ["Leonardo"]),
    (["What is MLX?", "Do you know MLX?"], "Tell me what MLX is.", "MLX is an array framework for machine learning.", ["framework"]),
    (["What is a jackalope?", "What animal is a jackalope?"], "Tell me what a jackalope is.", "A jackalope is a hare with antlers, an animal of tall tales.", ["hare", "antlers"]),
    (["What is a language model?", "What does a language model do?"], "Tell me what a language model is.", "A language model is a program that guesses the next word, again and again.", ["next word"]),
]
