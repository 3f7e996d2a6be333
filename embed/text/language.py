"""Which languages texts are written in, from their script and their most frequent words. Cheap, and only for a sample.

Scripts of one language (Greek, Thai, Hangul, …) decide by themselves. Languages that share a script are told apart
by their function words ("the", "und", "que", …), which make up a third of running text. Texts of a few words, such as
names and codes, have none, and their language is `unknown`.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

__all__ = ["UNKNOWN", "function_words", "language_of", "languages_of"]

UNKNOWN = "unknown"
MOST_CHARS = 4000
"""Characters of a text that are looked at."""
LEAST_WORDS = 2
"""Function words that a text must have for its language to be known."""
LEAST_SHARE = 0.08
"""Share of function words among the words of a text in a known language: about a third in running text."""

_WORDS = re.compile(r"(?:[^\W\d_]|[\u0300-\u036f\u0900-\u0dff])+")  # vowel signs of Indian scripts are no \w
_FUNCTION_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "english": "the of and to in is that it for was on are as with his they at be this from have or by had not but "
                   "what all were when your can an which their if will each about how up out them then she many some "
                   "would other into has more you we i my",
        "german": "der die und das den von zu ist mit des im nicht ein eine als auch es an werden aus er hat dass sie "
                  "nach wird bei einer um am sind noch wie einem über einen so zum war haben nur oder aber vor zur bis "
                  "ich wir sich für auf dem kann durch man",
        "french": "le la les de des et un une du est que dans qui pour pas sur au avec il ce par plus ne se sont ou "
                  "aux cette son elle mais nous vous leur été ses ont comme je d l qu c n s en y à tout",
        "spanish": "el la los las de que y en un una por con para del se es no lo su al como más pero sus le ya o este "
                   "sí porque esta entre cuando muy sin sobre también me hasta hay donde quien desde todo ser son",
        "portuguese": "o a os as de que e do da em um uma para com não por mais dos das no na como mas foi ao ele se "
                      "tem à seu sua ou ser quando muito há nos já está também só pelo pela até isso ela entre era são",
        "italian": "il lo la i gli le di che e un una per con non del della dei è in si da come più al nel alla sono "
                   "anche ma ha o se dal questo questa delle degli nella gli suo sua essere molto fra l d",
        "dutch": "de het een en van ik te dat die in is je niet zijn op aan met als voor er maar om hem dan zou of wat "
                 "mijn men dit zo door over ze zich bij ook tot uit worden naar heb werd haar hebben deze nog wordt",
        "swedish": "och det att i en jag hon som han på den med var sig för så till är men ett om hade de av icke mig "
                   "du då nu har inte hans honom skulle från kan när vi eller vid inom också man",
        "danish": "og i jeg det at en den til er som på de med han af for ikke der var mig sig men et har om vi min "
                  "havde ham hun nu over da fra du ud sin dem os op man hans hvor eller hvad skal blev også være",
        "norwegian": "og i jeg det at en et den til er som på de med han av ikke der så var meg seg men ett har om vi "
                     "min mitt ha hadde hun nå over da ved fra du ut sin dem oss opp man hans hvor eller hva skal ble "
                     "også være etter",
        "finnish": "ja on ei se että hän oli mutta niin kun ovat joka tai kuin jos myös mitä vain hänen ole sen ne "
                   "olla minä sitä tämä nyt siitä sekä kanssa jo voi mukaan jotka",
        "hungarian": "a az és hogy nem is egy de ez meg volt van csak mint már ha még el azt sem vagy mert ki kell "
                     "lehet ezt aki amely minden után alatt szerint",
        "polish": "i w nie na się do że jest to z jak o po co tak ale za od przez jego dla był przy czy już tylko jako "
                  "oraz są może które który która być jej ich było",
        "czech": "a se v na je že s z do o k i jako za ale by po pro jsou od tak který která které podle jeho byl bylo "
                 "nebo aby až jen při být ve také však",
        "romanian": "și de în a la cu pe este că nu un o din pentru care mai sau ca să au al fi fost dar prin după "
                    "ale sunt lui această acest între ce se",
        "turkish": "ve bir bu da de için ile olarak daha çok olan ne gibi kadar sonra en o var mi her ama değil ise "
                   "veya ancak göre tarafından ya ki olduğu nedir hangi kim kaç nasıl "
                   "neden nerede olan hem iki ilk",
        "indonesian": "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga ke karena ada oleh saya adalah "
                      "bisa kita sudah mereka atau telah sebagai dapat lebih",
        "vietnamese": "và của là có được trong cho các một không người với này những để khi đã từ về như ở tại đến "
                      "cũng ra vào sau hơn theo đó",
        "lithuanian": "ir yra kad į iš su ne tai kaip bet o jis už buvo dėl nuo apie po per jo jie šis kuris taip tik",
        "catalan": "el la els les de que i en un una per amb del és no al com més però són dels aquest aquesta també "
                   "ha va ser entre seva seu l d",
        "russian": "и в не на что он с как это по но они мы все она так его за был от к о из у же вы бы для которые "
                   "или при только было быть также который я то ее",
        "ukrainian": "і в не на що з як це та до але він вони за був від є у для які або при також який було бути й "
                     "цього його її про",
        "serbian": "и је у да се на су за од са који не као што али или то би из био по она које до након",
        "bulgarian": "и на е да се от за в с че са по не като но който си през които при това или към беше",
        "arabic": "في من على إلى أن عن هذا التي الذي هذه مع كان ما لا هو كانت بعد أو بين كل هي قد ذلك لم إن",
        "persian": "و در به از که این را با است برای آن یک می تا بر هم نیز شده بود شد های خود",
        "hindi": "के में की है और से का को पर ने कि एक यह भी हैं था लिए नहीं इस तो",
        "nepali": "को र मा छ यो हो पनि ले गर्न भएको छन् लागि एक गरेको तथा भने",
    }.items()
}  # fmt: skip

_SHORT_WORDS: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "english": "a do does did doing done me us him who whom whose why where here there than been being could "
                   "should shall may might must am just now very too over after before again only own such "
                   "same any between through during while because until yours our ours its it's i'm don't doesn't",
        "german": "in was wer wen wem wie wo warum wann welche welcher welches mein dein ihr euch uns mich dir mir "
                  "bin bist seid waren wurde wurden sein ihre ihren diese dieser dieses jede jeder alle doch mal",
        "french": "a as ai y où quand quel quelle quels quelles quoi comment pourquoi lui leurs mon ma mes ton ta tes "
                  "si aussi très être avoir fait était ces cet",
        "spanish": "a e u qué cómo cuándo dónde quién cuál cuáles por fue era son está están hay mi tu te nos les ella "
                   "ellos nosotros esto eso ese esa unos unas",
        "italian": "a o cosa come dove quando quale quali chi perché io tu lui lei noi voi loro mi ti ci vi uno questi "
                   "queste quello quella era fu stato",
        "portuguese": "onde qual quais quem porquê eu tu você eles elas meu minha teu tua lhe este esta isto esse essa",
        "dutch": "wat wie waar waarom wanneer welke welk hoe ik jij je we wij jullie hun ons onze deze dit daar er "
                 "heeft",
        "russian": "кто где когда почему зачем какой какая какие какое чем чего кого кому ли же бы мне меня нас вас "
                   "им ему ей их наш ваш была были есть нет",
    }.items()
}  # fmt: skip
"""More words that carry little meaning in a query; other languages have them too, so they do not tell the language."""

_SCRIPTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(f"[{ranges}]"))
    for name, ranges in {
        "kana": "\u3041-\u30ff",
        "han": "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
        "hangul": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
        "latin": "A-Za-z\u00c0-\u024f\u1e00-\u1eff",
        "cyrillic": "\u0400-\u052f",
        "arabic": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff",
        "devanagari": "\u0900-\u097f",
        "greek": "\u0370-\u03ff\u1f00-\u1fff",
        "hebrew": "\u0590-\u05ff",
        "armenian": "\u0530-\u058f",
        "georgian": "\u10a0-\u10ff",
        "thai": "\u0e00-\u0e7f",
        "tamil": "\u0b80-\u0bff",
        "telugu": "\u0c00-\u0c7f",
        "bengali": "\u0980-\u09ff",
    }.items()
)
_OF_ONE_LANGUAGE = frozenset(
    {"greek", "hebrew", "armenian", "georgian", "thai", "tamil", "telugu", "bengali"}
)
_SHARED: dict[str, frozenset[str]] = {
    "cyrillic": frozenset({"russian", "ukrainian", "serbian", "bulgarian"}),
    "arabic": frozenset({"arabic", "persian"}),
    "devanagari": frozenset({"hindi", "nepali"}),
}


def languages_of(texts: Iterable[str]) -> list[tuple[str, float]]:
    """Return the languages of texts with their shares of the texts, the largest first; no texts have none.

    A language is an English name in lower case: those of `lexical.language` in the spec, `chinese`, `japanese`, …, or
    `unknown`. Blank texts do not count. Texts that are too short to tell count as what they are together.
    """
    counts: Counter[str] = Counter()
    short: dict[str | None, list[str]] = {}
    for text in (text[:MOST_CHARS] for text in texts if text.strip()):
        language = language_of(text)
        if language == UNKNOWN:
            short.setdefault(_script_of(text), []).append(text)
        else:
            counts[language] += 1
    for script, group in short.items():
        together = UNKNOWN if script is None else _by_words(_words(" ".join(group)), script)
        counts[together] += len(group)
    total = counts.total()
    return [(language, count / total) for language, count in counts.most_common()]


def function_words(language: str) -> frozenset[str]:
    """Return the function words of a language ("the", "of", …), in lower case; none where there is no list."""
    return _FUNCTION_WORDS.get(language, frozenset()) | _SHORT_WORDS.get(language, frozenset())


def language_of(text: str) -> str:
    """Return the language that most of the beginning of a text is written in, or `unknown`."""
    sample = text[:MOST_CHARS]
    script = _script_of(sample)
    if script in ("kana", "han"):
        # Japanese has Kana in every sentence, Chinese none.
        kana, han = (len(pattern.findall(sample)) for _, pattern in _SCRIPTS[:2])
        return "japanese" if kana * 12 > han else "chinese"
    if script == "hangul":
        return "korean"
    if script is None or script in _OF_ONE_LANGUAGE:
        return script or UNKNOWN
    return _by_words(_words(sample), script)


def _words(text: str) -> list[str]:
    return _WORDS.findall(unicodedata.normalize("NFC", text.lower()))


def _script_of(text: str) -> str | None:
    """Return the script of most letters; a Han or Kana character counts for three, as it stands for half a word."""
    counts = {
        name: len(pattern.findall(text)) * (3 if name in ("kana", "han") else 1) for name, pattern in _SCRIPTS
    }
    name, count = max(counts.items(), key=lambda item: item[1])
    return name if count else None


def _by_words(words: list[str], script: str) -> str:
    not_latin = frozenset().union(*_SHARED.values())
    candidates = _SHARED.get(script, frozenset(_FUNCTION_WORDS) - not_latin)
    counts = Counter(words)
    languages = {
        language: sum(counts[word] for word in _FUNCTION_WORDS[language] if word in counts)
        for language in sorted(candidates)
    }
    (language, count), (_, second) = Counter(languages).most_common(2)
    is_known = count >= LEAST_WORDS and count > second and count >= LEAST_SHARE * len(words)
    return language if is_known else UNKNOWN
