"""A table of strings as Markdown and as LaTeX (package booktabs)."""

from __future__ import annotations

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_LATEX |= {"α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "ε": r"$\epsilon$", "κ": r"$\kappa$"}
_LATEX |= {"λ": r"$\lambda$", "μ": r"$\mu$", "τ": r"$\tau$", "−": "$-$", "…": r"\ldots{}", ">": "$>$", "<": "$<$"}
_LATEX |= {character: "\\" + character for character in "&%$#_{}"}


def markdown(headers: list[str], cells: list[list[str]], words: int = 1) -> str:
    """Columns padded so that it also reads well unrendered; the first ``words`` columns to the left, numbers right."""
    lines = [[text.replace("|", "\\|") for text in line] for line in [headers, *cells]]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(headers))]

    def padded(line: list[str]) -> str:
        pairs = zip(line, widths, strict=True)
        inner = [text.ljust(width) if i < words else text.rjust(width) for i, (text, width) in enumerate(pairs)]
        return f"| {' | '.join(inner)} |"

    rule = [("-" * width if i < words else "-" * (width - 1) + ":") for i, width in enumerate(widths)]
    return "\n".join([padded(lines[0]), f"| {' | '.join(rule)} |", *map(padded, lines[1:])]) + "\n"


def latex(headers: list[str], cells: list[list[str]], words: int = 1) -> str:
    """A tabular environment, columns aligned as in ``markdown``."""
    columns = "l" * words + "r" * (len(headers) - words)
    lines = [r"\begin{tabular}{" + columns + "}", r"\toprule", _latex_line(headers), r"\midrule"]
    return "\n".join([*lines, *map(_latex_line, cells), r"\bottomrule", r"\end{tabular}"]) + "\n"


def _latex_line(line: list[str]) -> str:
    return " & ".join("".join(_LATEX.get(character, character) for character in text) for text in line) + r" \\"
