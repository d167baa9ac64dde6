"""Reading and checking each paper's ``claims.yaml``; reading and writing the verdicts in ``claims.json`` of pages.

A claim is a sentence, its passage, and a comparison that decides it. Every comparison is a set of contrasts, one
number for each seed: A minus B, the loss by a change, or a difference of two losses. Signs are turned so that a
positive number supports a claim of a difference. Repeated intervals over seeds decide (docs/reference/statistics.md,
rule 4):

holds         every contrast's interval is on the claimed side of zero
fails         some contrast's interval is on the other side, Holm over the claim's contrasts
tie           some contrast of a claim of superiority is inside the margin, Holm over the claim's contrasts
inconclusive  none of these, with the reason
not run       no run of it, or no sweep yet;   blocked   cannot be run here, with the reason
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..config.part_sources import page_name, paper_folders
from ..errors import BenchError, did_you_mean
from ..files import build_plain, read_json, write_text
from .measures import LOG_RATIO, MEASURES
from .statistics import describe_seeds

FORMAT = 2
NAME = "claims.json"
VERDICTS = ("holds", "fails", "tie", "inconclusive", "not run", "blocked")
PART = "part of full"  # the scale of runs with fewer training images than the data set has
_LARGEST_LOG = 700.0  # whose exponential is a number
_DAY = 86_400.0  # seconds; texts show longer differences in days
JUDGED = VERDICTS[:4]  # on runs
BOARDS = ("paper", "construction", "question")
# kind of comparison (see claim_comparisons.py): keys of ``decide`` that it needs and that it may have
KINDS = {
    "order": ({"groups"}, {"at_least", "tie", "together", "target", "budget"}),
    "alike": ({"groups", "margin"}, set()),
    "wider": ({"groups"}, set()),
    "loses": ({"series", "along", "start", "end"}, {"than", "others", "at_least", "tie", "together"}),
    "close": ({"series", "along", "values", "margin"}, set()),
    "equals": ({"expected", "margin"}, {"counted", "test_samples"}),
    "reaches": ({"expected"}, set()),
}


@dataclass(frozen=True)
class Claim:
    """One claim of one paper. ``sweeps``: those that decide it, first the item's own; none without a sweep."""

    paper: str
    id: str
    item: str  # "figure 2"
    passage: str
    sentence: str
    sweeps: tuple[str, ...] = ()
    decide: Mapping[str, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)  # settings of the runs asked; a list: any of its values
    source: str = ""  # of the order that is compared with
    blocked: str = ""  # why it cannot be run here
    not_run: str = ""  # why no sweep decides it yet
    board: str = "paper"  # whose claim it is: the paper's, true by construction of the code, or a question of ours
    abstract: bool = False  # the paper's abstract claims it
    changed: bool = False  # its sentence or comparison was chosen with seeds in view: only new seeds judge it
    series: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name -> settings

    @property
    def key(self) -> str:
        return f"{self.paper}/{self.id}"


@dataclass(frozen=True)
class Verdict:
    """The verdict of one page's runs on a claim. Numbers are those of the contrast that decides: the least certain
    one where it holds or is inconclusive, the most certain contrary one where it fails or ties."""

    claim: str
    verdict: str
    reason: str = ""
    contrast: str = ""  # "ACE - FedBuff; delay = exp_beta5"
    difference: float = math.nan  # turned so that more than zero is as claimed
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan  # repeated, of "it is zero" (of "it is at the margin" for what is claimed to be equal)
    seeds: int = 0  # of the look that decides
    total: int = 0  # of the difference and its interval
    unit: str = ""
    contrasts: int = 0
    agree: int = 0  # contrasts whose interval excludes the contrary
    against: int = 0
    ties: int = 0
    indication: str = ""  # why the verdict is only an indication; empty if it is a verdict
    yardstick: str = ""  # the measure that was used
    reading: str = ""  # of the runs that were asked, on a page of several readings

    @property
    def marked_word(self) -> str:
        """The verdict, marked where it is only an indication: ``holds (preliminary)``."""
        return f"{self.verdict} (preliminary)" if self.indication and self.verdict in JUDGED[:3] else self.verdict

    @property
    def numbers(self) -> str:
        """``+1.56 points [-0.87, +3.98]``; the reason where there are none."""
        if self.verdict in ("blocked", "not run") or math.isnan(self.difference):
            return self.reason
        mean, low, high = (self._format(value) for value in (self.difference, self.low, self.high))
        unit = "days" if self._in_days else self.unit
        text = f"ratio {mean}" if unit == LOG_RATIO else f"{mean} {unit}".rstrip()
        return text if math.isnan(self.low) else f"{text} [{low}, {high}]"

    @property
    def _in_days(self) -> bool:
        return self.unit == "s" and abs(self.difference) >= _DAY

    def _format(self, value: float) -> str:
        """Return a difference with its sign; of logarithms as the ratio that it means."""
        if self.unit == LOG_RATIO and not math.isnan(value):
            return f"{math.exp(min(value / 100, _LARGEST_LOG)):.3g}"
        value /= _DAY if self._in_days else 1
        return f"{value:+.2f}" if abs(value) < 100 else f"{value:+.0f}"

    @property
    def tally(self) -> str:
        """``3 of 12 as claimed, 1 contrary, 2 tied``, where there is more than one contrast."""
        if self.contrasts <= 1:
            return ""
        counts = [(self.against, "contrary"), (self.ties, "tied")]
        more = "".join(f", {count} {word}" for count, word in counts if count)
        return f"{self.agree} of {self.contrasts} as claimed{more}"

    @property
    def reason_text(self) -> str:
        """Return why the claim is inconclusive, and why the verdict is only an indication."""
        few = "a comparison has " * self.indication.endswith(("seed", "seeds"))
        indication = f"preliminary: {few}{self.indication}" if self.marked_word != self.verdict else ""
        return "; ".join(filter(None, (self.reason, indication)))

    @property
    def details_text(self) -> str:
        """Return ``measured_text`` and ``reason_text``."""
        return "; ".join(filter(None, (self.measured_text, self.reason_text)))

    @property
    def measured_text(self) -> str:
        """Return the tally, the deciding contrast and its numbers: ``ACE - vanilla ASGD, α = 0.1: +1.56 points
        [-0.87, +3.98], p 0.15, 8 seeds, verdict after 5``."""
        if self.verdict in ("blocked", "not run") or math.isnan(self.difference):
            return "; ".join(filter(None, (self.tally, self.contrast)))
        of = ", p of the tie" if self.verdict == "tie" else ", p"
        p = "" if math.isnan(self.p) else f"{of} {self.p:.2g}" if self.p >= 1e-4 else f"{of} < 0.0001"
        seeds = describe_seeds(self.seeds, self.total, "seed") + ", by the last accuracy" * (self.yardstick == "last")
        return "; ".join(filter(None, (self.tally, f"{self.contrast}: {self.numbers}{p}, {seeds}")))


@dataclass(frozen=True)
class PageVerdicts:
    """The verdicts of one page: the content of its ``claims.json``."""

    sweep: str
    profile: str
    scale: str
    length: str
    verdicts: tuple[Verdict, ...]

    @property
    def section(self) -> str:
        """The heading of the page's section in an overview: ``figure2 published-small``."""
        return f"{self.sweep.partition('/')[2]} {page_name(self.profile, self.scale, self.length)}"


@cache
def read_claims(paper: str) -> tuple[Claim, ...]:
    """Return the claims of ``papers/PAPER/claims.yaml`` in the file's order; none without that file.

    An entry with ``for_each: {key: {value: word}}`` is a claim for each value, with the word at the end of its id and
    sentence. Each of these may have its own target accuracy: ``target: {value: percent}``.
    Raises BenchError naming the entry that is wrong.
    """
    content, claims = _read_content(paper), list[Claim]()
    for entry in content.get("claims", []):
        fields = {key: value for key, value in entry.items() if key != "for_each"}
        fields |= {"paper": paper, "series": content.get("series") or {}, "sweeps": tuple(entry.get("sweeps", ()))}
        try:
            for key in sorted(fields.keys() - Claim.__dataclass_fields__.keys()):
                raise ValueError(f"{key} is not a key of a claim{did_you_mean(key, Claim.__dataclass_fields__)}")
            claim = Claim(**fields)
            _check_claim(claim)
        except (TypeError, KeyError, ValueError) as error:
            raise BenchError(f"{content['path']}: {entry.get('id', entry)}: {error}") from None
        claims += [claim] if "for_each" not in entry else []
        for key, words in entry.get("for_each", {}).items():
            for value, word in words.items():
                target = claim.decide.get("target")
                decide = {**claim.decide, **({"target": target[value]} if isinstance(target, Mapping) else {})}
                name, sentence = f"{claim.id}-{value.rpartition('/')[2]}", f"{claim.sentence} ({word})"
                where = {**claim.where, key: value}
                claims.append(replace(claim, id=name, sentence=sentence, where=where, decide=decide))
    if twice := [name for name, count in Counter(claim.id for claim in claims).items() if count > 1]:
        raise BenchError(f"{content['path']}: {', '.join(sorted(twice))} is there twice")
    return tuple(claims)


def papers_with_claims() -> list[str]:
    """Return the folder names of all papers that have claims."""
    return [paper for paper in paper_folders() if _read_content(paper)]


def paper_title(paper: str) -> str:
    """Return the paper's name as pages show it."""
    return str(_read_content(paper)["name"])


def reading_note(sweep: str, profile: str) -> str:
    """Return in a few words how a sweep reads the paper differently; empty for the item's own sweep."""
    note = (_read_content(sweep.partition("/")[0]).get("readings") or {}).get(sweep, "")
    return str(note.get(profile, "") if isinstance(note, Mapping) else note)


def seen_seeds(sweep: str, scale: str) -> int:
    """Return below which seed the runs of a sweep at a scale were made before the rules were declared."""
    seen = _read_content(sweep.partition("/")[0]).get("seen") or {}
    return int({**seen, **seen.get(sweep, {})}.get(scale, 0))


@cache
def _read_content(paper: str) -> dict[str, Any]:
    """Return the parsed ``claims.yaml`` of a paper, with its path; an empty dict without that file."""
    folder = paper_folders().get(paper)
    if folder is None or not (path := folder / "claims.yaml").exists():
        return {}
    return {**yaml.safe_load(path.read_text(encoding="utf-8")), "path": path}


def _check_claim(claim: Claim) -> None:
    """Raise ValueError if the keys of ``decide`` do not fit its kind."""
    if not claim.sweeps:
        if bool(claim.blocked) == bool(claim.not_run):
            raise ValueError("without sweeps it needs either blocked or not_run, with the reason")
        return
    kind, measure = claim.decide["kind"], claim.decide["measure"]
    if kind not in KINDS:
        raise ValueError(f"kind {kind}: one of {', '.join(KINDS)}")
    if claim.board not in BOARDS:
        raise ValueError(f"board {claim.board}: one of {', '.join(BOARDS)}")
    if measure not in MEASURES and not measure.startswith("mse/"):
        raise ValueError(f"measure {measure}: mse/… or one of {', '.join(MEASURES)}")
    needed, allowed = KINDS[kind]
    given = set(claim.decide) - {"kind", "measure", "axis", "over", "relative"}
    if wrong := (needed - given) | (given - needed - allowed):
        raise ValueError(f"decide: {', '.join(sorted(wrong))} is missing or not of kind {kind}")
    if "at_least" in given and given & {"than", "others"}:
        raise ValueError("decide: at_least has no effect beside than or others; leave it out")
    if measure == "time_to_target" and "target" not in claim.decide:
        raise ValueError("measure time_to_target: needs target, an accuracy [%] that is fixed in advance")


def to_json(found: PageVerdicts | Sequence[PageVerdicts]) -> str:
    """Return the text of ``claims.json`` of a page, or of the pages of an overview."""
    content = _to_dict(found) if isinstance(found, PageVerdicts) else [_to_dict(page) for page in found]
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_verdicts(path: Path, found: PageVerdicts | Sequence[PageVerdicts] | None) -> None:
    """Write ``claims.json``, or remove it if nothing was found."""
    if found:
        write_text(path, to_json(found))
    else:
        path.unlink(missing_ok=True)


def _to_dict(page: PageVerdicts) -> dict[str, Any]:
    """Return a page as JSON has it; numbers that are not there are null, so that any reader takes it."""
    content: dict[str, Any] = {"format": FORMAT, **asdict(page)}
    optional = ("reading", "indication")  # left out where they are empty
    content["verdicts"] = [
        {key: None if value != value else value for key, value in one.items() if key not in optional or value}
        for one in content["verdicts"]
    ]
    return content


def read_verdicts(path: Path) -> list[tuple[str, PageVerdicts]]:
    """Return the pages of a ``claims.json``, each with its anchor in README.md beside it: a page's own, which is all of
    it, or those of an overview, each a section (``#figure2-published-small``).

    Raises BenchError for a damaged file or another format.
    """
    try:
        content = read_json(path)
        if not isinstance(content, list):
            return [("", _from_dict(content))]
        return [(f"#{page.section.replace(' ', '-')}", page) for page in map(_from_dict, content)]
    except (BenchError, OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise BenchError(f"{path}: {error}; remove it and write all of its pages again (afl-report)") from None


def _from_dict(content: Any) -> PageVerdicts:
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise BenchError(f"not of format {FORMAT}")
    verdicts: list[dict[str, Any]] = content.pop("verdicts")
    for one in verdicts:
        one.update({key: math.nan for key, value in one.items() if value is None})
    return build_plain(PageVerdicts, {**content, "verdicts": tuple(build_plain(Verdict, one) for one in verdicts)})
