"""Conversations with tools: a call when a tool fits, an answer from its response, no call when none fits."""

import json

from exchange import Exchange
from names import random_name

CITIES = ("Paris Berlin Rome Madrid Lisbon Vienna Brussels Athens Warsaw Stockholm Oslo Copenhagen Helsinki Dublin London "
          "Tokyo Beijing Bangkok Cairo Nairobi Ottawa Havana Lima Canberra Boston Chicago Munich Milan Sydney Toronto Denver "
          "Dallas Geneva Venice Naples Lyon Porto Cologne Bremen Leeds").split() + ["New York", "Buenos Aires", "New Delhi"]
# Never the subject of a training call.
HELD_CITIES = "Zurich Hamburg Moscow Seattle Krakow Budapest Edinburgh Bogota".split()
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"]
SONGS = ["Yellow Moon", "Blue River", "Happy Day", "Silent Night", "Summer Rain", "Golden Hill"]
TOPICS = ["black holes", "old castles", "jazz music", "apple cake", "electric cars", "wild horses", "chess rules", "the Roman empire",
          "solar power", "deep sea fish", "green tea", "paper planes"]
TEXTS = ["I am late", "see you at noon", "happy birthday", "buy some milk", "the train is gone", "call me back", "dinner is ready"]
LANGUAGES = ["French", "German", "Spanish", "Italian", "Polish", "Greek", "Japanese"]
ROOMS = ["kitchen", "bedroom", "bathroom", "garage", "office", "hall"]


class Tool:
    """A kind of tool: names and argument names vary, so the model must read the schema."""

    def __init__(self, names, description, arguments, ask, held_ask, respond):
        self.names, self.description, self.arguments = names, description, arguments
        self.ask, self.held_ask, self.respond = ask, held_ask, respond

    def instance(self, rng):
        """A concrete tool: (name, argument names, OpenAI tool object)."""
        name = rng.choice(self.names)
        keys = [rng.choice(options) for options, _, _ in self.arguments]
        properties = {}
        for key, (_, kind, about) in zip(keys, self.arguments):
            properties[key] = {"type": kind}
            if about and rng.random() < 0.4:
                properties[key]["description"] = about
        parameters = {"type": "object", "properties": properties}
        if rng.random() < 0.75:
            parameters["required"] = keys
        function = {"name": name, "description": self.description, "parameters": parameters}
        if rng.random() < 0.15:
            del function["description"]
        return name, keys, {"type": "function", "function": function}


def _city(rng, held):
    return rng.choice(HELD_CITIES if held else CITIES)


def _weather(rng, values):
    degrees, sky = rng.randint(-9, 35), rng.choice(SKIES)
    key = rng.choice(["temperature", "temp", "degrees"])
    return {key: degrees, "condition": sky}, f"It is {degrees} degrees and {sky} in {values[0]}.", [str(degrees), sky]


def _calculate(rng, values):
    result = rng.randint(2, 9999)
    return {"result": result}, f"The result is {result}.", [str(result)]


def _time(rng, values):
    time = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
    return {"time": time}, f"It is {time} in {values[0]}.", [time]


def _search(rng, values):
    number = rng.randint(2, 99)
    return {"results": number}, f"I found {number} pages about {values[0]}.", [str(number)]


def _done(text):
    def respond(rng, values):
        return {"status": "ok"}, text.format(*values), [str(values[0])]
    return respond


def _price(rng, values):
    price = rng.randint(2, 900)
    return {"price": price}, f"The price of {values[0]} is {price} dollars.", [str(price)]


def _translate(rng, values):
    word = random_name(rng).lower()
    return {"translation": word}, f"In {values[1]} it is: {word}.", [word]


# Each entry of `arguments` is (names to choose from, JSON type, description); `ask` takes the values in that order.
TOOLS = {
    "weather": Tool(["get_weather", "weather", "get_current_weather", "fetch_weather"], "Get the current weather in a city",
                    [(["city", "location", "place"], "string", "Name of the city")],
                    ["What is the weather in {}?", "What is the weather like in {}?", "How is the weather in {} today?", "Is it raining in {}?", "Is it warm in {}?"],
                    ["Tell me the weather in {}.", "Is it cold in {} now?"], _weather),
    "calculator": Tool(["calculator", "calculate", "compute"], "Calculate an expression",
                       [(["expression", "formula"], "string", "The expression")],
                       ["What is {}?", "Calculate {}.", "How much is {}?", "Compute {}."], ["Please work out {}."], _calculate),
    "time": Tool(["get_time", "current_time", "clock"], "Get the current time in a city",
                 [(["city", "location", "timezone"], "string", "Name of the city")],
                 ["What time is it in {}?", "What is the time in {}?", "How late is it in {}?"], ["Tell me the time in {}."], _time),
    "search": Tool(["search", "web_search", "search_web"], "Search the web",
                   [(["query", "q", "text"], "string", "What to look for")],
                   ["Search for {}.", "Look up {}.", "Find pages about {}.", "Search the web for {}."], ["Please look for {}."], _search),
    "timer": Tool(["set_timer", "start_timer", "timer"], "Start a timer",
                  [(["minutes", "duration_minutes"], "integer", "Minutes to wait")],
                  ["Set a timer for {} minutes.", "Start a timer of {} minutes.", "Wake me in {} minutes."], ["I need a timer for {} minutes."],
                  _done("The timer is set for {} minutes.")),
    "message": Tool(["send_message", "send_text", "message"], "Send a message to a person",
                    [(["to", "recipient", "name"], "string", "Who gets it"), (["text", "message", "body"], "string", "The message")],
                    ["Send a message to {}: {}", "Write to {}: {}", "Tell {}: {}"], ["Please text {}: {}"], _done("I sent your message to {}.")),
    "translate": Tool(["translate", "translate_text", "translator"], "Translate a text",
                      [(["text", "phrase"], "string", "The text"), (["language", "target_language", "to"], "string", "The target language")],
                      ["Translate '{}' to {}.", "How do you say '{}' in {}?", "What is '{}' in {}?"], ["Please put '{}' into {}."], _translate),
    "music": Tool(["play_music", "play_song", "play"], "Play a song",
                  [(["song", "title"], "string", "Title of the song")],
                  ["Play {}.", "Please play {}.", "I want to hear {}.", "Play the song {}."], ["Can you play {}?"], _done("Now playing {}.")),
    "light": Tool(["turn_on_light", "light_on", "switch_on_light"], "Turn on the light in a room",
                  [(["room", "place"], "string", "The room")],
                  ["Turn on the light in the {}.", "Light in the {}, please.", "Switch on the light in the {}."], ["Make light in the {}."],
                  _done("The light in the {} is on.")),
    "price": Tool(["get_price", "stock_price", "get_stock_price"], "Get the price of a stock",
                  [(["symbol", "stock", "name"], "string", "Name of the stock")],
                  ["What is the price of {}?", "How much is {} stock?", "Get the price of {}."], ["Tell me the price of {}."], _price),
    "train": Tool(["find_train", "search_trains", "get_trains"], "Find a train between two cities",
                  [(["from", "origin", "start"], "string", "Where to start"), (["to", "destination", "end"], "string", "Where to go")],
                  ["Find a train from {} to {}.", "I want to go from {} to {} by train.", "Is there a train from {} to {}?"],
                  ["Which train goes from {} to {}?"],
                  lambda rng, values: (lambda t: ({"departure": t}, f"A train to {values[1]} leaves at {t}.", [t]))(
                      f"{rng.randint(5, 22):02}:{rng.randint(0, 59):02}")),
}


def values_for(rng, kind, held):
    """The arguments that the user gives for a tool of this kind."""
    if kind in ("weather", "time"):
        return [_city(rng, held)]
    if kind == "train":
        start, end = rng.sample(HELD_CITIES if held else CITIES, 2)
        return [start, end]
    if kind == "calculator":
        return [f"{rng.randint(12, 999)} {rng.choice('+-*/')} {rng.randint(12, 999)}"]
    if kind == "timer":
        return [rng.randint(1, 90)]
    if kind == "message":
        return [random_name(rng, held), rng.choice(TEXTS)]
    if kind == "translate":
        return [rng.choice(TEXTS + TOPICS), rng.choice(LANGUAGES)]
    if kind == "price":
        return [random_name(rng, held)]
    return [rng.choice({"search": TOPICS, "music": SONGS, "light": ROOMS}[kind])]


NO_TOOL = "I am sorry, I have no tool for that."


def call_text(name, arguments):
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def setting(rng, num_tools):
    """Several tools of different kinds: [(kind, name, argument names)], [OpenAI tool objects]."""
    instances = [(kind, *TOOLS[kind].instance(rng)) for kind in rng.sample(list(TOOLS), num_tools)]
    return [i[:3] for i in instances], [i[3] for i in instances]


def use(rng, chosen, held):
    """One use of a tool: (question, call, response as JSON text, answer, words in the answer, {"name", "arguments"})."""
    kind, name, keys = chosen
    tool, values = TOOLS[kind], values_for(rng, kind, held)
    question = rng.choice(tool.held_ask if held else tool.ask).format(*values)
    arguments = dict(zip(keys, values))
    response, answer, words = tool.respond(rng, values)
    return question, call_text(name, arguments), json.dumps(response), answer, words, {"name": name, "arguments": arguments}


def conversation(rng, single):
    """A training conversation with one to three tools; `single` makes a question that needs none."""
    instances, tools = setting(rng, rng.choice([1, 1, 1, 2, 2, 3]))
    messages = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(["You are a helpful assistant.", "Use the tools when they help.",
                                                                  f"You are {random_name(rng)}."])})
    for _ in range(rng.choice([1, 2, 2, 3])):
        kind = rng.random()
        if kind < 0.72:
            question, call, response, answer, _, _ = use(rng, rng.choice(instances), False)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": call},
                         {"role": "tool", "content": response}, {"role": "assistant", "content": answer}]
        elif kind < 0.84:
            exchange = plain(single)
            messages += [{"role": "user", "content": exchange.user}, {"role": "assistant", "content": exchange.assistant}]
        else:
            question = missing(rng, instances, False)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": NO_TOOL}]
    return {"messages": messages, "tools": tools}


def plain(single):
    """A question for which no tool is ever the right answer."""
    while True:
        exchange = single()
        if exchange.category in ("facts", "small talk", "stories", "repeat", "counting"):
            return exchange


def missing(rng, instances, held):
    """A question that fits a tool which is not there."""
    absent = rng.choice([kind for kind in TOOLS if kind not in [i[0] for i in instances]])
    return rng.choice(TOOLS[absent].held_ask if held else TOOLS[absent].ask).format(*values_for(rng, absent, held))


def heldout(rng, fact):
    """[(exchange, messages before, tools)]: a call, an answer from a response, and a question that needs no tool."""
    instances, tools = setting(rng, rng.choice([1, 2, 3]))
    question, call, response, answer, words, wanted = use(rng, rng.choice(instances), True)
    cases = [(Exchange("tool call", question, call, {"tool_call": wanted}), [], tools)]
    before = [{"role": "user", "content": question}, {"role": "assistant", "content": call}]
    cases.append((Exchange("tool answer", response, answer, {"has": words}, role="tool"), before, tools))
    if rng.random() < 0.5:
        cases.append((Exchange("no tool fits", missing(rng, instances, True), NO_TOOL, {"no_call": ["no tool"]}), [], tools))
    else:
        other = fact()
        cases.append((Exchange("no tool fits", other.user, other.assistant, {"no_call": other.check["has"]}), [], tools))
    return cases
