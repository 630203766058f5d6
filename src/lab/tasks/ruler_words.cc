#include "lab/tasks/ruler_words.h"

namespace condense {

const std::vector<std::string>& RulerAdjectives() {
  static const std::vector<std::string> words = {
      "able",    "acidic", "agile",   "airy",     "alert",  "ample",  "angry",  "arctic",
      "arid",    "ashen",  "awake",   "bald",     "basic",  "bitter", "bland",  "blank",
      "bleak",   "blind",  "blue",    "blunt",    "bold",   "bony",   "brave",  "brief",
      "bright",  "brisk",  "broad",   "brown",    "bumpy",  "busy",   "calm",   "candid",
      "careful", "casual", "cheap",   "cheerful", "chilly", "civil",  "classy", "clean",
      "clear",   "clever", "clumsy",  "coarse",   "cold",   "cozy",   "crisp",  "crude",
      "curly",   "curved", "damp",    "dapper",   "daring", "dark",   "dear",   "deep",
      "dense",   "dim",    "dizzy",   "dry",      "dull",   "dusty",  "eager",  "early",
      "earthy",  "easy",   "elastic", "elegant",  "empty",  "equal",  "even",   "exact",
      "faded",   "faint",  "fair",    "false",    "famous", "fancy",  "fast",   "feeble",
      "fertile", "fierce", "fine",    "firm",     "flat",   "fluffy", "fond",   "formal",
      "frail",   "frank",  "fresh",   "frosty",   "full",   "fuzzy",  "gentle", "giant",
      "gifted",  "glad",   "glossy",  "grand",    "grave",  "gray",   "green",  "grim",
      "handy",   "happy",  "hard",    "harsh",    "hasty",  "heavy",  "hidden", "high",
      "honest",  "huge",   "icy",     "idle",     "jolly",  "keen",   "kind",   "large",
      "late",    "lazy",   "lean",    "light",    "limp",   "little", "lively", "lofty",
      "lone",    "long",   "loose",   "loud",     "loyal",  "lucky",  "mellow", "mild",
      "minor",   "misty",  "modest",  "moist",    "muddy",  "narrow", "neat",   "nimble",
      "noble",   "noisy",  "novel",   "odd",      "old",    "open",   "oval",   "pale",
      "patient", "plain",  "playful", "polite",   "proud",  "pure",   "quick",  "rapid",
      "rare",    "raw",    "ready",   "rich",     "rigid",  "ripe",   "robust", "rosy",
      "rough",   "round",  "royal",   "rural",    "salty",  "sandy",  "scarce", "secret",
      "serene",  "shaggy", "shallow", "sharp",    "shiny",  "short",  "shy",    "silent",
      "simple",  "sleek",  "slim",    "slow",     "small",  "smart",  "smooth", "soft",
      "solar",   "solid",  "sour",    "spare",    "spicy",  "stable", "stale",  "steady",
      "steep",   "stern",  "sticky",  "stiff",    "stout",  "strong", "sturdy", "sunny",
      "sweet",   "swift",  "tall",    "tame",     "tart",   "tasty",  "tender", "thick",
      "thin",    "tidy",   "tiny",    "tough",    "vague",  "vast",   "vivid",  "warm",
      "wary",    "wavy",   "weary",   "wide",     "wild",   "wise",   "witty",  "woolly",
      "young",   "zesty"};
  return words;
}

const std::vector<std::string>& RulerNouns() {
  static const std::vector<std::string> words = {
      "acorn",    "actor",   "album",    "alley",   "almond",  "anchor",  "angle",    "ankle",
      "apple",    "apron",   "arch",     "arrow",   "artist",  "atlas",   "attic",    "autumn",
      "badge",    "bagel",   "baker",    "balcony", "ball",    "banjo",   "banner",   "barn",
      "barrel",   "basin",   "basket",   "beach",   "beacon",  "bean",    "beard",    "beetle",
      "bench",    "berry",   "bike",     "blanket", "blossom", "boat",    "bonnet",   "book",
      "boot",     "bottle",  "boulder",  "bowl",    "branch",  "bread",   "brick",    "bridge",
      "broom",    "brush",   "bucket",   "bugle",   "butter",  "cabin",   "cable",    "cactus",
      "camel",    "camera",  "candle",   "canoe",   "canyon",  "cape",    "carpet",   "carrot",
      "castle",   "cave",    "cedar",    "cellar",  "chain",   "chair",   "chalk",    "cherry",
      "chest",    "chimney", "circle",   "cliff",   "clock",   "cloud",   "clover",   "coast",
      "cobra",    "coin",    "collar",   "comet",   "copper",  "coral",   "cotton",   "couch",
      "cradle",   "crane",   "crater",   "creek",   "cricket", "curtain", "cushion",  "daisy",
      "desert",   "diary",   "dinner",   "dragon",  "dream",   "drum",    "eagle",    "easel",
      "elbow",    "engine",  "fabric",   "falcon",  "farmer",  "fence",   "fern",     "ferry",
      "fiddle",   "field",   "flame",    "flute",   "forest",  "fossil",  "fountain", "fox",
      "galaxy",   "garden",  "garlic",   "gate",    "geyser",  "ginger",  "glacier",  "glove",
      "goose",    "gravel",  "guitar",   "hammer",  "harbor",  "harp",    "hawk",     "helmet",
      "hill",     "honey",   "hotel",    "island",  "ivory",   "jacket",  "jewel",    "jungle",
      "kayak",    "kettle",  "kitten",   "knot",    "ladder",  "lagoon",  "lake",     "lamp",
      "lantern",  "lemon",   "lily",     "lizard",  "lobster", "locket",  "magnet",   "mango",
      "maple",    "marble",  "market",   "meadow",  "melon",   "mirror",  "mitten",   "moon",
      "mosaic",   "moss",    "mountain", "museum",  "needle",  "nest",    "oasis",    "ocean",
      "olive",    "onion",   "orchard",  "otter",   "oven",    "owl",     "paddle",   "palace",
      "panda",    "paper",   "parrot",   "pebble",  "pencil",  "pepper",  "piano",    "picnic",
      "pillow",   "pine",    "planet",   "plum",    "pocket",  "pond",    "potato",   "prairie",
      "puppet",   "quilt",   "rabbit",   "radish",  "rainbow", "raven",   "ribbon",   "river",
      "robin",    "rocket",  "saddle",   "sail",    "salmon",  "sandal",  "scarf",    "school",
      "shadow",   "sheep",   "shell",    "shovel",  "silver",  "sofa",    "spider",   "spoon",
      "squirrel", "stable",  "star",     "statue",  "stone",   "stream",  "summer",   "tiger",
      "timber",   "tower",   "trumpet",  "tulip",   "tunnel",  "turtle",  "valley",   "vessel",
      "village",  "violin",  "walnut",   "whale",   "wheel",   "window",  "winter",   "wizard",
      "wolf",     "zebra"};
  return words;
}

}  // namespace condense
