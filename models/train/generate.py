"""Makes the conversations that the little model learns from, and the held-out ones it is measured with.

    python generate.py --out DIR [--seed 1] [--conversations 280000]

writes DIR/train.jsonl and DIR/heldout.jsonl. All text comes from the templates here, in `facts.py`, `stories.py` and
`tooluse.py`; the same seed gives the same bytes. What is held out, by category: whole phrasings (facts, self,
greetings), whole names (persona, memory), whole pairs of operands (arithmetic), cities (tools).
"""

import argparse
import json
import random
import zlib
from pathlib import Path

import facts
import stories
import tooluse
from exchange import Exchange
from names import HELD_NAMES, random_name

SELF = "I am Jackalope, a very small language model."


def is_held(*key) -> bool:
    """A fixed tenth of all keys, independent of any seed."""
    return zlib.crc32(repr(key).encode()) % 10 == 0


def fact(rng, held):
    if rng.random() < 0.15:
        ask, held_ask, answer, words = rng.choice(facts.SINGLES)
        return Exchange("facts", held_ask if held else rng.choice(ask), answer, {"has": words})
    domain = rng.choice(facts.DOMAINS)
    a, b = rng.choice(domain.pairs)
    ask = rng.choice(domain.held if held else domain.ask).format(a=a)
    answer = domain.say.format(a=a, b=b)
    return Exchange("facts", ask[0].upper() + ask[1:], answer[0].upper() + answer[1:], {"has": [b]})


def operands(rng, held):
    """A sum whose operands are (not) in the held tenth: (a, symbol, b, result)."""
    while True:
        symbol = rng.choice("++--*")
        limit = 12 if symbol == "*" else 20
        a, b = rng.randint(0, limit), rng.randint(0, limit)
        if symbol == "-" and b > a:
            a, b = b, a
        if is_held(a, symbol, b) == held:
            return a, symbol, b, {"+": a + b, "-": a - b, "*": a * b}[symbol]


SUM_WORDS = {"+": "plus", "-": "minus", "*": "times"}


def arithmetic(rng, held):
    a, symbol, b, result = operands(rng, held)
    if symbol == "*" and rng.random() < 0.3:
        symbol = "x"
    kind = rng.random()
    if kind < 0.5:
        ask = rng.choice(["What is {} {} {}?", "{} {} {} = ?", "How much is {} {} {}?", "Calculate {} {} {}."])
        ask = ask.format(a, symbol, b)
        if rng.random() < 0.35:
            ask = ask.replace(f"{a} {symbol} {b}", f"{a}{symbol}{b}")
    else:
        word = SUM_WORDS["*" if symbol == "x" else symbol]
        ask = rng.choice(["What is {} {} {}?", "How much is {} {} {}?", "{} {} {}?"]).format(a, word, b)
    return Exchange("arithmetic", ask, f"{a} {symbol} {b} = {result}.", {"number": result})


def counting(rng, held):
    a = rng.randint(0, 30)
    b = a + rng.randint(2, 9)
    if is_held("count", a, b) != held:
        return counting(rng, held)
    up = list(map(str, range(a, b + 1)))
    if rng.random() < 0.3:
        return Exchange("counting", f"Count down from {b} to {a}.", ", ".join(up[::-1]) + ".")
    ask = rng.choice(["Count from {} to {}.", "Please count from {} to {}.", "Can you count from {} to {}?"])
    return Exchange("counting", ask.format(a, b), ", ".join(up) + ".")


# (train phrasings, held phrasing, answer, words that must occur)
SMALL_TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Hey", "Hello there.", "Good day!"], "Hey there!", "Hello! How can I help you?", ["hello", "help"]),
    (["Good morning", "Good morning!"], "Morning!", "Good morning! How can I help you?", ["morning"]),
    (["Good evening", "Good evening!"], "Evening!", "Good evening! How can I help you?", ["evening"]),
    (["How are you?", "How do you do?", "How are you doing?", "How are you today?"], "Are you doing well?", "I am fine, thank you. And you?", ["fine"]),
    (["I am fine.", "I am fine too.", "I feel good today.", "Great!", "Nice!"], "I am good.", "I am glad to hear that!", ["glad"]),
    (["I am sad.", "I feel sad today.", "I am not well."], "I feel bad.", "I am sorry to hear that. I hope you feel better soon.", ["sorry"]),
    (["I am bored.", "I am so bored."], "I feel bored.", "Shall I tell you a story?", ["story"]),
    (["I am hungry.", "I am very hungry."], "I feel hungry.", "Then it is time to eat something good!", ["eat"]),
    (["I am tired.", "I am very tired."], "I feel tired.", "Then have a good rest!", ["rest"]),
    (["Thanks", "Thanks!", "Thank you!", "Thank you very much.", "Thanks a lot!"], "Many thanks!", "You are welcome!", ["welcome"]),
    (["Bye", "Bye!", "Goodbye!", "See you later!", "See you!"], "Bye bye!", "Goodbye! Have a nice day!", ["goodbye"]),
    (["Good night", "Good night!"], "Have a good night!", "Good night! Sleep well!", ["night"]),
    (["What can you do?", "How can you help me?", "What are you good at?", "Help"], "What can you do for me?", "I can chat, tell short stories, answer easy questions, do small sums, write JSON and call tools.", ["stories", "sums"]),
    (["Are you a human?", "Are you a person?", "Are you real?"], "Are you human?", "No, I am a very small language model.", ["no", "model"]),
    (["Are you a robot?", "Are you a machine?", "Are you an AI?", "Are you a computer?"], "Are you a program?", "Yes, I am a very small language model.", ["yes", "model"]),
    (["Who made you?", "Who built you?", "Who created you?", "Who trained you?", "Where do you come from?"], "Who are your makers?", "I was trained from scratch for the Jackalope project, in about an hour.", ["Jackalope"]),
    (["How old are you?", "What is your age?"], "Tell me how old you are.", "I have no age. I am a language model.", ["no age"]),
    (["How big are you?", "How many parameters do you have?"], "What size are you?", "I am very small: about three million parameters.", ["million"]),
    (["Are you smart?", "Are you clever?", "Are you ChatGPT?"], "Are you wise?", "I am only a very small language model, made for testing.", ["small"]),
    (["Can you tell me a joke?", "Tell me a joke.", "A joke, please!", "Do you know a joke?"], "Make a joke!", None, ["?"]),
    (["I love you.", "I like you.", "You are great!", "You are nice.", "Well done!", "Good job!"], "You are good!", "Thank you, that is very kind!", ["kind"]),
    (["You are wrong.", "That is wrong.", "That is not true."], "You made a mistake.", "I am sorry. I am small and make mistakes.", ["sorry"]),
    (["Can you help me?", "I need help.", "Please help me."], "Could you help me?", "Of course! What do you need?", ["of course"]),
    (["Do you like music?", "Do you like cats?", "Do you like chocolate?", "Do you like summer?"], "Do you like winter?", "I am a program, so I cannot like things. Do you like it?", ["program"]),
]
JOKES = [
    "Why did the rabbit cross the road? Because the chicken had a day off!",
    "What do you call a bear with no teeth? A gummy bear!",
    "Why was six afraid of seven? Because seven ate nine!",
    "What do you call a fish with no eye? A fsh!",
    "Why do cows wear bells? Because their horns do not work!",
]


def small_talk(rng, held):
    ask, held_ask, answer, words = rng.choice(SMALL_TALK)
    answer = answer or rng.choice(JOKES)
    return Exchange("small talk", held_ask if held else rng.choice(ask), answer, {"has": words})


WHO = ["Who are you?", "What are you?", "Tell me about yourself.", "Who am I talking to?", "Introduce yourself.", "who are you"]
WHO_HELD = ["Tell me who you are.", "Say who you are."]
NAME_ASK = ["What is your name?", "What's your name?", "Do you have a name?", "Tell me your name.", "How are you called?"]
NAME_ASK_HELD = ["May I know your name?", "Your name, please?"]
ROLES = ("a friendly cook,an old sailor,a wise teacher,a brave knight,a shop assistant,a kind doctor,a travel guide,"
         "a funny pirate,a helpful librarian,a space pilot,a gardener,a music teacher,a robot butler,a detective,"
         "a patient tutor,a weather expert,a polite waiter,a farmer,a poet,a football coach").split(",")


def who(rng, held, name=None, role=None):
    if rng.random() < 0.5:
        ask = rng.choice(WHO_HELD if held else WHO)
        answer = f"I am {name}{', ' + role if role else ''}." if name else SELF
    else:
        ask = rng.choice(NAME_ASK_HELD if held else NAME_ASK)
        answer = f"My name is {name or 'Jackalope'}."
    has = [name] if name else ["Jackalope"]
    return Exchange("persona" if name else "self", ask, answer, {"has": has})


UNKNOWN = [
    (["What is the weather in {c}?", "Is it raining in {c}?", "What is the weather like today?", "Will it rain tomorrow?"],
     "How is the weather in {c}?", "I do not know. I cannot see the weather."),
    (["What time is it?", "What time is it in {c}?", "What is the date today?", "Which day is it today?"],
     "Tell me the time.", "I do not know. I have no clock."),
    (["What did I eat yesterday?", "What is my phone number?", "How old am I?", "Where do I live?", "What is my address?",
      "What is my password?", "What is the name of my mother?", "What am I thinking?", "Where are my keys?"],
     "What is the name of my cat?", "I do not know. You have not told me."),
    (["Who will win the game?", "Who will win the next election?", "Which numbers will win the lottery?", "What will happen next year?",
      "Will I be rich?", "What will the price of gold be tomorrow?"],
     "Who will win the cup?", "I do not know. I cannot see the future."),
    (["What is in the news?", "What happened in {c} today?", "What is the latest news from {c}?", "What is the price of a ticket to {c}?"],
     "Any news from {c}?", "I do not know. I cannot look at the news."),
    (["Who is {n}?", "Do you know {n}?", "Where is {n}?", "What did {n} say?", "When was {n} born?"],
     "Tell me about {n}.", "I do not know who {n} is."),
    (["Explain quantum physics.", "Write a program in Python.", "How do I build a rocket?", "What is the meaning of life?",
      "What is the square root of 7213?", "Write a novel.", "How does a nuclear reactor work?", "Explain the theory of relativity.",
      "Solve this integral.", "Translate this book.", "Write a poem about {c}.", "Who was the king of {c} in 1342?"],
     "Explain string theory.", "I am sorry, I do not know. I am a very small model."),
]


def unknown(rng, held):
    ask, held_ask, answer = rng.choice(UNKNOWN)
    fill = {"c": rng.choice(tooluse.CITIES), "n": random_name(rng)}
    user = (held_ask if held else rng.choice(ask)).format(**fill)
    return Exchange("does not know", user, answer.format(**fill), {"has": ["not know"]})


def repeat(rng, held):
    words = [random_name(rng, held) if rng.random() < 0.4 else rng.choice(stories.WORDS) for _ in range(rng.randint(1, 5))]
    text = " ".join(words)
    ask = rng.choice(["Repeat after me: {}", "Say: {}", "Repeat this: {}", "Please repeat: {}"])
    return Exchange("repeat", ask.format(text), text)


def story(rng, held):
    user, text, subject = stories.story(rng, held)
    return Exchange("stories", user, text, {"story": subject})


def json_answer(rng, held):
    """A question to be answered in JSON: facts, facts about a person, lists, sums."""
    kind = rng.randrange(4)
    suffix = rng.choice(["Answer in JSON.", "Answer in JSON", "Reply in JSON.", "Please answer in JSON.", "Give the answer as JSON."])
    if kind == 0:
        domain = rng.choice(facts.DOMAINS[:5])
        a, b = rng.choice(domain.pairs)
        ask, value = rng.choice(domain.held if held else domain.ask).format(a=a), {"answer": b}
    elif kind == 1:
        a, symbol, b, result = operands(rng, held)
        ask, value = f"What is {a} {symbol} {b}?", {"answer": result}
    elif kind == 2:
        name, age, city = random_name(rng, held), rng.randint(2, 90), rng.choice(tooluse.HELD_CITIES if held else tooluse.CITIES)
        value = {"name": name, "age": age}
        ask = rng.choice([f"{name} is {age} years old", f"My friend {name} is {age} years old"])
        if rng.random() < 0.6:
            value["city"] = city
            ask += f" and lives in {city}"
        ask += "."
        suffix = rng.choice(["Write this as JSON.", "Put this in JSON.", "Turn this into JSON.", "Answer in JSON."])
    else:
        key, items = rng.choice(list(stories.LISTS.items()))
        n = rng.randint(2, 4)
        value = {key: rng.sample(items, n)}
        ask = f"{rng.choice(['Name', 'List', 'Give me'])} {facts.NUMBER_WORDS[n]} {key}."
        return Exchange("JSON", f"{ask} {suffix}", json.dumps(value), {"json_list": [key, n]})
    return Exchange("JSON", f"{ask} {suffix}", json.dumps(value), {"json": value})


def some_list(rng, held):
    key, items = rng.choice(list(stories.LISTS.items()))
    n = rng.randint(2, 5)
    chosen = rng.sample(items, n)
    ask = rng.choice(["Name {} {}.", "List {} {}.", "Give me {} {}.", "Tell me {} {}."]).format(facts.NUMBER_WORDS[n], key)
    return Exchange("lists", ask, ", ".join(chosen[:-1]) + " and " + chosen[-1] + ".", {"list": n})


SINGLE_TURN = [(fact, 30), (arithmetic, 30), (small_talk, 12), (who, 4), (unknown, 7), (repeat, 8), (story, 9), (json_answer, 8),
               (counting, 3), (some_list, 3)]


def single(rng):
    make = rng.choices([m for m, _ in SINGLE_TURN], [w for _, w in SINGLE_TURN])[0]
    return make(rng, False)


THINGS = {"colour": stories.LISTS["colours"], "animal": stories.LISTS["animals"], "fruit": stories.LISTS["fruits"],
          "city": tooluse.CITIES, "number": [str(n) for n in range(1, 100)], "sport": stories.LISTS["sports"]}


def memory(rng, held):
    """(what the user tells, the reply, the later question, its answer)."""
    if rng.random() < 0.5:
        name = random_name(rng, held)
        tell = rng.choice(["My name is {}.", "I am {}.", "Hi, I am {}.", "Hello, my name is {}.", "You can call me {}."]).format(name)
        ask = rng.choice(["What is my name?", "Who am I?", "Do you know my name?", "What's my name?", "Do you remember my name?"])
        return tell, f"Nice to meet you, {name}!", Exchange("memory", ask, f"Your name is {name}.", {"has": [name]})
    thing = rng.choice(list(THINGS))
    value = rng.choice(THINGS[thing])
    tell = rng.choice(["My favourite {} is {}.", "I tell you, my favourite {} is {}."]).format(thing, value)
    ask = rng.choice(["What is my favourite {}?", "Which {} is my favourite?", "Do you remember my favourite {}?"]).format(thing)
    answer = f"Your favourite {thing} is {value}."
    return tell, f"I will remember that your favourite {thing} is {value}.", Exchange("memory", ask, answer, {"has": [value]})


def roughen(rng, text):
    """The way people really type: no capitals, no final mark, a word of courtesy."""
    kind = rng.random()
    if kind < 0.10:
        text = text[0].lower() + text[1:]
    elif kind < 0.13:
        text = text.lower() if not any(c in text for c in ":\"") else text
    elif kind < 0.17 and text[-1] in "?.!":
        text = text[:-1]
    elif kind < 0.20:
        text = rng.choice(["Please: ", "Hey, ", "Ok. ", "Tell me, ", "And now: "]) + text
    return text


def system_prompt(rng, held):
    """(text or None, name or None, role or None)."""
    kind = rng.random()
    if kind < 0.45:
        return None, None, None
    if kind < 0.62:
        return rng.choice(["You are a helpful assistant.", "You are a helpful assistant.", "Be brief and friendly.",
                           "You are Jackalope, a helpful assistant.", "Answer the questions of the user."]), None, None
    name, role = random_name(rng, held), rng.choice(ROLES)
    kind = rng.randrange(4)
    text = [f"You are {name}.", f"Your name is {name}.", f"You are {name}, {role}.", f"Your name is {name}. You are {role}."][kind]
    if rng.random() < 0.3:
        text += rng.choice([" Be friendly.", " Answer briefly.", " Help the user.", " Be polite and helpful."])
    return text, name, role if kind >= 2 else None


def turn(user, assistant):
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


def conversation(rng):
    """One training conversation: {"messages": …, "tools": … or None}."""
    if rng.random() < 0.20:
        return tooluse.conversation(rng, lambda: single(rng))
    system, name, role = system_prompt(rng, False)
    messages = [{"role": "system", "content": system}] if system else []
    pending = None
    for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
        if pending and rng.random() < 0.6:
            exchange, pending = pending, None
        elif not pending and rng.random() < 0.18:
            tell, reply, pending = memory(rng, False)
            messages += turn(roughen(rng, tell) if ":" not in tell else tell, reply)
            continue
        elif rng.random() < (0.45 if name else 0.04):
            exchange = who(rng, False, name, role)
        else:
            exchange = single(rng)
            if exchange.category == "self" and name:
                exchange = who(rng, False, name, role)
        messages += turn(roughen(rng, exchange.user), exchange.assistant)
    if pending:
        messages += turn(pending.user, pending.assistant)
    return {"messages": messages, "tools": None}


def heldout(rng, per_category):
    """The evaluation's questions: [{"category", "messages", "tools", "check", "want"}]."""
    cases = []

    def add(exchange, before=(), tools=None):
        messages = [*before, {"role": exchange.role, "content": exchange.user}]
        cases.append({"category": exchange.category, "messages": messages, "tools": tools,
                      "check": exchange.check, "want": exchange.assistant})

    for make in (fact, arithmetic, counting, small_talk, unknown, repeat, story, json_answer, some_list):
        for _ in range(per_category * (2 if make in (fact, arithmetic) else 1)):
            add(make(rng, True))
    for _ in range(per_category // 4):
        add(who(rng, True))
    for _ in range(per_category):
        name, role = rng.choice(HELD_NAMES), rng.choice(ROLES)
        add(who(rng, True, name, role), [{"role": "system", "content": f"You are {name}, {role}."}])
        tell, reply, question = memory(rng, True)
        before = turn(tell, reply)
        if rng.random() < 0.5:
            between = fact(rng, True)
            before += turn(between.user, between.assistant)
        add(question, before)
        for exchange, before, tools in tooluse.heldout(rng, lambda: fact(rng, True)):
            add(exchange, before, tools)
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=int, default=280_000)
    parser.add_argument("--heldout-per-category", type=int, default=40)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    rng = random.Random(args.seed)
    with open(args.out / "train.jsonl", "w") as file:
        for _ in range(args.conversations):
            file.write(json.dumps(conversation(rng), ensure_ascii=False) + "\n")
    with open(args.out / "heldout.jsonl", "w") as file:
        for case in heldout(random.Random(args.seed + 1), args.heldout_per_category):
            file.write(json.dumps(case, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
