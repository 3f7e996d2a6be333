"""Words that end with a full stop inside of a sentence, by language.

Where a language is not known, those of English are taken, with what all languages share.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

__all__ = ["ORDINAL_LANGUAGES", "SENTENCE_STARTERS", "Abbreviations", "abbreviations_of"]


class Abbreviations(NamedTuple):
    """The abbreviations of a language, in lower case, without their full stop."""

    inside: frozenset[str]
    """A sentence never ends after them: "Dr. Who"."""
    numbered: frozenset[str]
    """A sentence does not end between them and a number: "No. 5"."""
    ambiguous: frozenset[str]
    """A sentence ends after them if a word follows that often begins one: "Acme Inc. The shares", "Acme Inc. Tokyo"."""


_INSIDE = {
    "": "dr prof mr mrs ms vs cf st mt viz ed eds al",
    "english": "messrs rev hon gen lt col sgt capt gov sen rep pres supt approx fig figs dept est e.g i.e eg ie jan "
               "feb mar apr jun jul aug sept oct nov dec mon tue wed thu fri ph.d m.d",
    "german": "hr fr frl dipl ing z.b d.h u.a o.ä bzw ca evtl ggf inkl exkl sog vgl nr str geb gest jh jhd phil med "
              "jur s.o s.u i.d.r v.chr n.chr bspw zzgl mind max min tel abs art",
    "french": "m mm mme mmes mlle me c.-à-d p.ex env av apr boul ste",
    "spanish": "sr sra srta sres d dña ud uds p.ej a.c d.c ee.uu pág núm tel avda",
    "italian": "sig sig.ra dott dott.ssa avv ing arch geom on p.es ecc.mo a.c d.c",
    "portuguese": "sr sra srs dra exmo p.ex a.c d.c pág núm av",
    "dutch": "dhr mw mevr drs ir bijv d.w.z o.a m.b.t t.o.v nl resp ca blz nr jl",
    "russian": "т.е т.н т.к т.о напр см ср г гг ул пр просп им акад проф руб тыс млн млрд стр рис гл обл р",
    "ukrainian": "т.зв напр див ім вул проф акад тис млн млрд рис",
    "polish": "np tzn tzw tj ul al im św dr hab inż mgr prof ks wg ok r w godz",
    "czech": "např tzn tzv tj sv ul nám ing mgr bc ks cca popř resp mj",
    "swedish": "t.ex d.v.s bl.a s.k m.m kl nr f.d",
    "danish": "f.eks bl.a dvs ca nr kl hr fr",
    "norwegian": "f.eks bl.a dvs ca nr kl hr fr",
    "turkish": "örn bkz vb sn doç prof av",
}  # fmt: skip


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NUMBERED = _set(
    "no nos nr p pp vol fig figs ch chap sec art eq ex abs kap bd s ss pág núm с рис стр гл ст n° č čl str"
)
_AMBIGUOUS = _set(
    "inc ltd co corp jr sr bros u.s u.k u.n e.u d.c b.c a.d a.m p.m u.s.a etc usw uvm u.s.w ecc т.д т.п др itd itp "
    "atd o.s.v osv enz gmbh mbh cie s.a s.p.a"
)

ORDINAL_LANGUAGES = _set("german danish norwegian finnish czech polish hungarian turkish serbian lithuanian")
"""Languages that write "3rd" as "3."."""

SENTENCE_STARTERS = _set(
    "the a an in on at he she it they we i you this that these those but and so if as when after for from his her its "
    "their there however der die das ein eine er sie es wir ich im am auf aber und doch dies diese nach le la les un "
    "une il elle ils elles nous on ce cette mais et dans en el los las una ellos pero y o os uma ele ela eles mas "
    "e gli lo uno ma в на он она они это но и а как de het een hij zij maar"
)
"""Words that begin sentences more often than they follow an abbreviation with a capital."""


@lru_cache(maxsize=64)
def abbreviations_of(language: str | None) -> Abbreviations:
    """Return the abbreviations of a language, such as `german`; of English if there is no list of it."""
    words = f"{_INSIDE['']} {_INSIDE.get(language or '', _INSIDE['english'])}"
    return Abbreviations(_set(words), _NUMBERED, _AMBIGUOUS)
