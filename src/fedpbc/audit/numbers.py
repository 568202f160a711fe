"""How the audit writes numbers for readers: no exponents, no nan; a dash where there is nothing to say."""

from __future__ import annotations

import math

DASH = "\N{EN DASH}"


def percent(value: float | None) -> str:
    """A share for readers.

    >>> percent(0.1234), percent(0.0001234), percent(1), percent(0.00001)
    ('12%', '0.012%', '100%', 'under 0.01%')
    """
    if value is None or not math.isfinite(value):
        return DASH
    hundred = 100 * float(value)
    if 0 < hundred < 0.01:
        return "under 0.01%"
    if 99.5 <= hundred < 100:
        return f"{hundred:.1f}%" if hundred < 99.95 else "over 99.9%"
    return f"{hundred:.0f}%" if hundred == 0 or hundred >= 9.95 else f"{hundred:#.2g}%"


def share(value: float) -> str:
    """A rate with three places; more where it is small.

    >>> share(0.5), share(0.0123), share(0.000123), share(1e-9), share(0)
    ('0.500', '0.012', '0.00012', 'under 0.000001', '0.000')
    """
    if 0 < value < 1e-6:
        return "under 0.000001"
    return f"{value:.3f}" if value == 0 or value >= 0.01 else number(value, 2)


def tick(value: float) -> str:
    """A share on a picture's scale: as short as it can be, whatever its size.

    >>> tick(1.0), tick(0.25), tick(0.0125), tick(3e-7), tick(0)
    ('100%', '25%', '1.2%', '0.00003%', '0%')
    """
    return f"{number(100 * float(value), 2)}%"


def number(value: float, digits: int = 3) -> str:
    """A number to so many digits, all digits before the point, never with an exponent.

    >>> number(12345.6), number(0.0666), number(99.96), number(2.0), number(1e-7), number(0)
    ('12,346', '0.0666', '100', '2', '0.0000001', '0')
    """
    if not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    places = max(digits - 1 - size, 0)
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if places else text


def times(ratio: float | None) -> str:
    """A multiple for readers; None is a dash.

    >>> times(1.834), times(0.001), times(123.4), times(None)
    ('1.83×', 'under 0.01×', '123×', '–')
    """
    if ratio is None or not math.isfinite(ratio):
        return DASH
    if 0 < ratio < 0.01:
        return "under 0.01\N{MULTIPLICATION SIGN}"
    digits = 0 if ratio >= 100 or ratio == 0 else 1 if ratio >= 10 else 2
    return f"{ratio:,.{digits}f}\N{MULTIPLICATION SIGN}"


def left(share: float) -> str:
    """What a round leaves of a distance, in [0, 1]; digits where it is near 1, no exponent where it is near 0.

    >>> left(0.8148), left(0.99987), left(1e-6), left(0)
    ('0.815', '0.99987', 'less than 0.001', 'less than 0.001')
    """
    if share < 1e-3:
        return "less than 0.001"
    return number(share, 3) if share < 0.99 else f"{1 - float(f'{1 - share:.1e}'):.12f}".rstrip("0").rstrip(".")


def in_rounds(value: float) -> str:
    """A duration in rounds.

    >>> in_rounds(0.2), in_rounds(1), in_rounds(2.5), in_rounds(1234.5)
    ('less than a round', '1 round', '2.5 rounds', '1,234 rounds')
    """
    if value < 1:
        return "less than a round"
    return count(round(value), "round") if value >= 9.95 else f"{value:.2g} round{'' if f'{value:.2g}' == '1' else 's'}"


def in_whole_rounds(value: float) -> str:
    """So many rounds suffice: up to a whole number.

    >>> in_whole_rounds(0.2), in_whole_rounds(16.2), in_whole_rounds(16.0)
    ('1 round', '17 rounds', '16 rounds')
    """
    return count(max(math.ceil(value - 1e-9), 1), "round")


def cycle_of(period: float) -> str:
    """A period, measured, hence rounded: ``24 rounds``."""
    return f"{number(period)} rounds"


def count(value: int, what: str) -> str:
    """``3 clients``."""
    return f"{value:,} {what}{'' if value == 1 else 's'}"


def p_value(p: float) -> str:
    """``= 0.02`` or ``< 0.001``."""
    return "< 0.001" if p < 0.001 else f"= {number(p, 2)}"
