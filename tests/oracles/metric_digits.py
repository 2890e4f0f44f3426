"""Writes metric_digits.inc: metrics of numbers with large offsets, large integers and doubles, for tests/metrics.

What numpy and scikit-learn would round away is computed in rational numbers. Needs numpy, scipy and scikit-learn; run as
`python tests/oracles/metric_digits.py`.
"""

import math
import pathlib
from fractions import Fraction

import numpy as np
import scipy
import scipy.linalg
import scipy.stats
import sklearn
import sklearn.metrics

random = np.random.default_rng(7)


def integers(below, count):
    return random.integers(0, below, count).astype(np.float64)


def root(value):
    """Of a fraction, rounded once more than a correct one."""
    shift = max(0, 256 - (value.numerator.bit_length() - value.denominator.bit_length()))
    shift += shift % 2
    return float(Fraction(math.isqrt((value.numerator << shift) // value.denominator), 1 << (shift // 2)))


def rounded(value):
    """A fraction as a double, infinite beyond their range."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def logarithm(value):
    """Of a fraction, to base 10."""
    if 1e-300 < value < 1e300:
        return math.log10(value)
    return math.log10(value.numerator) - math.log10(value.denominator)


# ---- Predictions and targets

COUNT = 24
noise = integers(9, COUNT)
levels = integers(17, COUNT)
eights = levels / 8
random_pairs = np.random.default_rng(11).standard_normal((2, COUNT))
pairs = {
    "constant beside 1e9": (np.full(8, 1e9), 1e9 + np.arange(8)),
    "offset 1e8": (1e8 + levels + noise, 1e8 + levels),
    "offset 1e8 and little in common": (1e8 + noise, 1e8 + levels),
    "offset -1e12": (-1e12 + levels + noise, -1e12 + levels),
    "offset 1e15": (1e15 + eights + noise, 1e15 + eights),
    "two offsets": (-1e12 + noise, 1e12 + levels),
    "integers above 2^30": (2.0**30 + levels + noise, 2.0**30 + levels),
    "integers above 2^52": (2.0**52 + levels + noise, 2.0**52 + levels),
    "doubles near 1": (1 + levels * 1e-12 + noise * 1e-13, 1 + levels * 1e-12),
    "doubles": (random.standard_normal(COUNT), random.standard_normal(COUNT)),
    "small": (1e-30 * (levels + noise), 1e-30 * (1 + levels)),
    "large": (1e30 * (levels + noise), 1e30 * (1 + levels)),
    "near 1e-200": (1e-200 * (levels + noise), 1e-200 * (1 + levels)),
    "near 1e200": (1e200 * (levels + noise), 1e200 * (1 + levels)),
    "doubles of 1e-200": (1e-200 * random_pairs[0], 1e-200 * random_pairs[1]),
    "doubles of 1e200": (1e200 * random_pairs[0], 1e200 * random_pairs[1]),
    "offset of 1e200": (1e200 * (1e8 + levels + noise), 1e200 * (1e8 + levels)),
    "of every size": (10.0 ** (25 * np.arange(COUNT) - 300), 10.0 ** (25 * np.arange(COUNT)[::-1] - 300)),
    "near the least": (1e-310 * (levels + noise), 1e-310 * (1 + levels)),
    "near the largest": (1e304 * (levels - noise), 1e304 * (1 + levels)),
    "vanishing beside targets": (1e-200 * (levels + noise), 1e150 * (1 + levels)),
    "rising": (1e9 * (np.arange(COUNT) ** 3 + noise), 1e9 * np.arange(COUNT) ** 3),
}


def mean(values):
    return sum(values) / len(values)


def of_pair(predictions, targets):
    p, t = [Fraction(x) for x in predictions], [Fraction(x) for x in targets]
    errors = [a - b for a, b in zip(p, t)]

    def covariance(a, b):
        return mean([x * y for x, y in zip(a, b)]) - mean(a) * mean(b)

    squares = mean([e * e for e in errors])
    variance, spread = covariance(t, t), covariance(p, p)
    product = covariance(p, t)
    smallest = Fraction(1.17e-6)
    cosines = []
    for i in range(0, len(p), 4):
        a, b = p[i : i + 4], t[i : i + 4]
        dot = sum(x * y for x, y in zip(a, b))
        lengths = sum(x * x for x in a) * sum(y * y for y in b)
        cosines.append(root(dot * dot / lengths) * (1 if dot > 0 else -1) if lengths else math.nan)
    ranks = [scipy.stats.rankdata(x) for x in (predictions, targets)]
    return {
        "mse": rounded(squares),
        "rmse": root(squares),
        "psnr": -10 * logarithm(squares),
        "mae": rounded(mean([abs(e) for e in errors])),
        "mape": rounded(mean([abs(e) / max(abs(x), smallest) for e, x in zip(errors, t)])),
        "r2": rounded(1 - squares / variance),
        "explained_variance": rounded(1 - covariance(errors, errors) / variance),
        "pearson": root(product**2 / (spread * variance)) * (1 if product > 0 else -1) if spread else math.nan,
        "spearman": scipy.stats.pearsonr(*ranks)[0] if spread else math.nan,
        "cosine": sum(cosines) / len(cosines),
        "mean": rounded(mean(p)),
        "weighted_mean": rounded(sum(a * abs(b) for a, b in zip(p, t)) / sum(abs(b) for b in t)),
        "min": min(predictions),
        "max": max(predictions),
    }


# ---- Scores and labels

SCORES = 40
steps = integers(12, SCORES)
labels = ((steps + integers(9, SCORES)) > 9).astype(np.int64)
scores = {
    "near 1": 1 - (12 - steps) * 4e-9,
    "at 1": 1 - (11 - steps) * 2.0**-53,
    "near 0": steps * 1e-50,
    "near a half": 0.5 + (steps - 6) * 1e-14,
    "offset 1e9": 1e9 + steps / 1024,
}
QUERIES = 5
queries = np.arange(SCORES) % QUERIES


def calibration(confidences, hits, bins, norm):
    """Confidences of 1 have a bin of their own."""
    places = np.digitize(confidences, np.linspace(0, 1, bins + 1)) - 1
    distances, shares = [], []
    for place in np.unique(places):
        inside = places == place
        distances.append(abs(confidences[inside].mean() - hits[inside].mean()))
        shares.append(inside.mean())
    distances, shares = np.array(distances), np.array(shares)
    return {
        "l1": (distances * shares).sum(),
        "l2": math.sqrt((distances**2 * shares).sum()),
        "max": distances.max(),
    }[norm]


def of_scores(values):
    precisions, recalls, thresholds = sklearn.metrics.precision_recall_curve(labels, values)
    fpr, tpr, roc_thresholds = sklearn.metrics.roc_curve(labels, values, drop_intermediate=False)
    reaches = recalls[:-1] >= 0.9
    found = {
        "auroc": sklearn.metrics.roc_auc_score(labels, values),
        "average_precision": sklearn.metrics.average_precision_score(labels, values),
        "pr_curve": [*recalls, *precisions, *thresholds, math.inf],
        "roc": [*fpr, *tpr, *roc_thresholds],
        "precision_at_recall": precisions[:-1][reaches].max(),
    }
    rounds = []
    gains = []
    for query in range(QUERIES):
        inside = queries == query
        rounds.append(sklearn.metrics.average_precision_score(labels[inside], spread(values[inside], labels[inside])))
        gains.append(sklearn.metrics.ndcg_score([labels[inside]], [values[inside]]))
    found["retrieval_map"] = np.mean(rounds)
    found["retrieval_ndcg"] = np.mean(gains)
    if values.max() <= 1:
        for norm in ["l1", "l2", "max"]:
            found[f"calibration/{norm}"] = calibration(values, labels, 10, norm)
        # Thresholds 0, 0.5 and 1.
        reached = [np.ones(SCORES), values >= 0.5, values >= 1]
        found["auroc/3"] = sklearn.metrics.roc_auc_score(labels, sum(x.astype(float) for x in reached))
    return found


def spread(values, relevance):
    """Places, of which equal values have different ones, the irrelevant first."""
    order = np.lexsort((relevance, -values))
    places = np.empty(len(values))
    places[order] = -np.arange(len(values))
    return places


# ---- Logits of classes, whose softmax float32 rounds to 1

CLASSES = 3
logits = np.round(random.standard_normal((SCORES, CLASSES)), 2).astype(np.float32)
logits[:, 0] += np.float32(20)
classes = random.integers(0, CLASSES, SCORES)


def softmax(values):
    exponentials = np.exp(values - values.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


def of_logits():
    probabilities = softmax(logits.astype(np.float64))
    one_hot = np.eye(CLASSES)[classes]
    wide = logits.astype(np.float64) + 1e6
    chosen = np.log(softmax(wide)[np.arange(SCORES), classes])
    best = probabilities.argmax(1)
    found = {
        "auroc": sklearn.metrics.roc_auc_score(one_hot, probabilities, average=None),
        "average_precision": sklearn.metrics.average_precision_score(one_hot, probabilities, average=None),
        "perplexity": math.exp(-chosen.mean()),
    }
    for norm in ["l1", "l2", "max"]:
        found[f"calibration/{norm}"] = calibration(probabilities.max(1), best == classes, 10, norm)
    return found


# ---- Counts of long runs

confusions = [[10**12, 3, 40], [5, 7, 2], [60, 1, 10**7]]
positives = [3 * 10**9, 2 * 10**9, 10**9]  # by threshold 0, 0.5, 1: at or above it, below the next
negatives = [10**9, 4 * 10**9, 10**9]


def of_counts():
    size = range(3)
    n = sum(map(sum, confusions))
    labelled = [sum(confusions[i]) for i in size]
    predicted = [sum(confusions[j][i] for j in size) for i in size]
    hits = sum(confusions[i][i] for i in size)
    covariance = hits * n - sum(a * b for a, b in zip(labelled, predicted))
    variances = (n * n - sum(x * x for x in labelled)) * (n * n - sum(x * x for x in predicted))
    chance = Fraction(sum(a * b for a, b in zip(labelled, predicted)), n)
    won = sum(positives[i] * (2 * sum(negatives[:i]) + negatives[i]) for i in size)
    return {
        "matthews": root(Fraction(covariance**2, variances)),
        "kappa": float((hits - chance) / (n - chance)),
        "auroc": float(Fraction(won, 2 * sum(positives) * sum(negatives))),
    }


# ---- Features and pictures

real = integers(64, 30 * 3).reshape(30, 3)
generated = integers(80, 22 * 3).reshape(22, 3)


def distance():
    roots = scipy.linalg.sqrtm(np.cov(real.T) @ np.cov(generated.T)).real
    means = real.mean(0) - generated.mean(0)
    return (means**2).sum() + np.trace(np.cov(real.T) + np.cov(generated.T) - 2 * roots)


SIDE = 12
pictures = {
    "offset 1e6": (1e6 + integers(200, SIDE * SIDE), 1e6 + integers(200, SIDE * SIDE)),
    "doubles": (random.random(SIDE * SIDE), random.random(SIDE * SIDE)),
    "two offsets": (1e8 + integers(200, SIDE * SIDE), integers(200, SIDE * SIDE)),
}


def similarity(x, y, data_range):
    """In 80 bits, each window's variances by its own mean."""
    reach = 5
    line = np.exp(-np.arange(-reach, reach + 1, dtype=np.longdouble) ** 2 / (2 * np.longdouble(1.5) ** 2))
    window = np.outer(line, line) / np.outer(line, line).sum()
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    x, y = (np.pad(a.reshape(SIDE, SIDE).astype(np.longdouble), reach, "reflect") for a in (x, y))
    total = np.longdouble(0)
    for i in range(SIDE):
        for j in range(SIDE):
            a, b = (v[i : i + 2 * reach + 1, j : j + 2 * reach + 1] for v in (x, y))
            ma, mb = (window * a).sum(), (window * b).sum()
            va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
            cov = (window * (a - ma) * (b - mb)).sum()
            total += (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    return float(total / SIDE**2)


# ---- The file

inputs, expected = {}, {}
for name, (predictions, targets) in pairs.items():
    inputs[f"{name}/predictions"], inputs[f"{name}/targets"] = predictions, targets
    expected |= {f"{metric}/{name}": value for metric, value in of_pair(predictions, targets).items()}
inputs["labels"], inputs["queries"] = labels, queries
for name, values in scores.items():
    inputs[f"{name}/scores"] = values
    expected |= {f"{metric}/{name}": value for metric, value in of_scores(values).items()}
inputs["logits"], inputs["classes"] = logits.flatten(), classes
expected |= {f"{metric}/logits": value for metric, value in of_logits().items()}
inputs["confusions"], inputs["positives"], inputs["negatives"] = np.ravel(confusions), positives, negatives
expected |= {f"{metric}/counts": value for metric, value in of_counts().items()}
inputs["real"], inputs["generated"] = real.flatten(), generated.flatten()
expected["fid"] = distance()
for name, (x, y) in pictures.items():
    inputs[f"{name}/pictures"], inputs[f"{name}/meant"] = x, y
    expected[f"ssim/{name}"] = similarity(x, y, 1.0 if name == "doubles" else 255.0)


def number(value):
    return "NAN" if math.isnan(value) else "INFINITY" if math.isinf(value) else repr(float(value))


def table(name, entries):
    rows = "".join(
        f'    {{"{key}", {{{", ".join(number(x) for x in np.ravel(values))}}}}},\n' for key, values in entries.items()
    )
    return f"const std::map<std::string, std::vector<double>> {name} = {{\n{rows}}};\n"


pathlib.Path(__file__).with_suffix(".inc").write_text(
    f"// Written by metric_digits.py with numpy {np.__version__}, scipy {scipy.__version__}, "
    f"scikit-learn {sklearn.__version__}.\n"
    "// clang-format off\n" + table("kDigitInputs", inputs) + "\n" + table("kDigitsExpected", expected)
)
