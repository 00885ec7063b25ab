"""The sentence at the top of a comparison: which method is ahead, if one is ahead by more than chance."""

from etag.core.text import fixed, listing
from etag.report.agreement import Paired, paired
from etag.report.groups import MethodRuns, RunGroup, best_first
from etag.report.style import uses_all_data

NAMED = 5  # methods in one sentence


def headline(group: RunGroup) -> str:
    """Names a winner only if the 95 % interval of its paired difference in A to every other row excludes zero. Methods
    that train on all data are upper bounds: they are no rivals, and get a sentence of their own."""
    bounds = [member for member in group.all if uses_all_data(member.method)]
    rivals = best_first(member for member in group.all if member not in bounds)
    sentences = [_leader(rivals)] if rivals else []
    sentences += [f"{o.title}, trained on the data of all tasks, reaches {_reached(o)}." for o in bounds]
    return " ".join(sentences)


def _leader(rivals: list[MethodRuns]) -> str:
    best, *others = rivals
    if not others:
        return f"{best.title} reaches {_reached(best)}."
    compared = [(other.title, paired(best.percents(), other.percents())) for other in others]
    unknown = [title for title, difference in compared if difference is None or difference.margin is None]
    equal = [title for title, found in compared if found and found.margin is not None and not found.above_zero]
    if not equal and not unknown:
        return f"{best.title} is ahead of every other method: it reaches {_reached(best)}{_distance(*compared[0])}."
    highest = f"{best.title} has the highest A, {_reached(best)}"
    if not equal:
        needed = "two or more shared seeds are needed to say whether it is better than"
        return f"{highest}, but {needed} {listing(unknown, NAMED)}."
    why = f"the 95 % interval of its difference to {'each of them' if len(equal) > 1 else equal[0]} includes zero"
    more = f" (too few shared seeds to compare it with {listing(unknown, NAMED)})" if unknown else ""
    return f"{highest}, but it is not clearly better than {listing(equal, NAMED)}: {why}{more}."


def _distance(title: str, difference: Paired | None) -> str:
    if difference is None or difference.interval is None:
        return ""
    low, high = (fixed(end, 1) for end in difference.interval)
    return f", {fixed(difference.difference.mean, 1)} points above {title} (95 % interval {low} to {high})"


def _reached(member: MethodRuns) -> str:
    return f"{member.spread().text(lambda value: fixed(value, 1))} %"
