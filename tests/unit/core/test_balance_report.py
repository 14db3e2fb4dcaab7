"""The benchmarks' table: ratios to one row of the same run, and losses named."""

import math

from tests.load.balance_report import REFERENCE, table


def figures(mean, p99=1.0, lost=0.0):
    return {"mean_s": mean, "p50_s": mean, "p99_s": p99, "goodput": 0.5, "unfinished": lost}


def test_rows_are_ratios_to_the_reference_by_median():
    found = {
        "60%": {
            REFERENCE: [figures(2.0), figures(2.0)],
            "ours": [figures(1.0), figures(1.4)],
            "lost": [figures(8.0, math.inf, 0.25)] * 2,
        }
    }
    _, reference, ours, lost, absent, absolute = table(found, {"absent": "not here"}).splitlines()
    assert reference.split()[-4:] == ["1.00", "1.00", "1.00", "50%"]
    assert ours.split()[-4:] == ["0.60", "0.60", "1.00", "50%"]
    assert lost.split()[-5:] == ["4.00", "-", "50%", "(25%", "lost)"]
    assert absent.split() == ["absent", "not", "here"]
    assert absolute.split()[-3:] == ["2000", "2000", "1000"]
