"""Prompts of the numeric fixtures. Raw ones are completed as they stand; chats go through the model's template."""

_TIDE = (
    "The harbour at Vell was built twice. The first time it was built of timber, by people who had watched the tide for "
    "three generations and believed that they understood it. They drove oak piles into the mud, laid planks across them, "
    "and for eleven winters nothing happened that they had not foreseen. In the twelfth a storm came out of the north-east "
    "at the top of a spring tide, and by morning there was no harbour, only a line of broken posts leading out to sea. The "
    "second time it was built of stone, and slowly, by people who no longer believed that they understood anything. They "
    "measured the water every hour, day and night, for six years before they set the first block. Children grew up "
    "believing that the measuring was itself the purpose, and that the wall, when it came, was merely a kind of ruler. "
)
_RIVERS = (
    "A river does not carry all of its sediment in the same way. Clay and fine silt travel in suspension, held up by "
    "turbulence, and give the water its colour. Sand moves in short jumps along the bed, a motion called saltation, and "
    "gravel rolls or slides only when the flow is strong. When the current slackens, the coarse material is dropped first "
    "and the fine material last, which is why the deposits of a delta grade from sand near the channel to mud offshore. "
)
_CODE = '''use std::collections::HashMap;

/// Counts how often each word occurs, ignoring case.
fn count_words(text: &str) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for word in text.split_whitespace() {
        *counts.entry(word.to_lowercase()).or_insert(0) += 1;
    }
    counts
}

#[test]
fn counts_ignore_case() {
'''
_TABLE = "year,month,rain_mm,sun_h\n" + "".join(
    f"20{20 + n // 12},{n % 12 + 1},{(37 * n + 11) % 97},{(53 * n + 7) % 211}\n" for n in range(9)
)


def _user(content: str) -> list[dict]:
    return [{"role": "user", "content": content}]


# name -> text or chat. Lengths run from 1 token to several hundred, so from a part of one KV block to dozens.
GOLDEN: dict[str, str | list[dict]] = {
    "one token": "The",
    "two tokens": "Once upon",
    "three digits": "314",
    "capital": "The capital of France is",
    "fifteen tokens": "In the beginning of the nineteenth century, the steam engine changed",
    "list": "Here are ten fruits:\n1. Apple\n2. Banana\n3.",
    "python": "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "rust": _CODE,
    "json": '{"name": "Ada Lovelace", "born": 1815, "fields": ["mathematics", "computing"], "works": [{"title":',
    "arithmetic": "2 + 2 = 4\n3 + 5 = 8\n7 + 6 = 13\n9 + 8 = 17\n12 + 15 =",
    "french": "La Révolution française est une période de bouleversements sociaux et politiques qui",
    "unicode": "Привет, мир! 你好，世界！ こんにちは 🌍🚀 — naïve café, Ελληνικά, 한국어:",
    "whitespace": "a\n\n\n  b\t\tc        d\r\n\r\n e",
    "table": _TABLE,
    "prose": _TIDE,
    "long prose": _TIDE + "\n\n" + _RIVERS + "In summary,",
    # These three end by themselves soon, and the 64 positions run on past the end.
    "chat capital": _user("What is the capital of Japan?"),
    "chat city": _user("What is the capital of Germany?"),
    "chat week": _user("How many days are in a week?"),
    "chat greeting": _user("Hello! Who are you and what can you do?"),
    "chat explain": _user("Explain how photosynthesis works to a ten-year-old."),
    "chat system": [
        {"role": "system", "content": "You are a patient teacher of geography who answers in full sentences."},
        {"role": "user", "content": "Why do rivers form deltas?"},
    ],
    "chat turns": [
        {"role": "user", "content": "I want to learn to cook."},
        {"role": "assistant", "content": "Great! Start with a few simple dishes, such as omelettes, soups and roasted vegetables."},
        {"role": "user", "content": "Give me a detailed recipe for vegetable soup."},
    ],
}

# Candidates for the exact-count checks: kept where the reference ends by itself and no choice on the way is close. A model
# of this size is that sure of itself on few subjects; capitals are one.
_COUNTRIES = (
    "Japan", "Germany", "Egypt", "Greece", "Norway", "Sweden", "Denmark", "Finland", "Poland", "Hungary", "Austria", "Ireland", "Cuba", "Peru",
    "Chile", "Argentina", "Colombia", "Mexico", "Canada", "Australia", "New Zealand", "China", "India", "Thailand", "Vietnam", "South Korea",
    "Russia", "Ukraine", "Turkey", "Iran", "Iraq", "Israel", "Kenya", "Nigeria", "Morocco", "Ethiopia", "South Africa", "England", "Scotland", "Wales",
    "the Netherlands", "Belgium", "Switzerland", "Portugal", "the United States", "California", "Texas", "Florida", "Ontario", "Bavaria",
)
ENDING_CHATS = [_user(f"What is the capital of {country}?") for country in _COUNTRIES] + [
    _user(text)
    for text in (
        "How many days are in a week?", "How many months are in a year?", "How many minutes are in an hour?", "How many seconds are in a minute?",
        "How many states are in the United States?", "Who was the first president of the United States?", "What is the freezing point of water?",
        "What is the largest ocean on Earth?", "What is the longest river in the world?", "Who wrote Romeo and Juliet?", "What planet do we live on?",
    )
]
