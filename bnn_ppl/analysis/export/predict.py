"""Predict with an exported Bayesian neural network. Needs jax, numpy and flatbuffers alone.

    python predict.py rows.csv > predictions.csv      (.tsv, .npz, .npy; - is a CSV on stdin)
    python predict.py --serve 8000                    (a page that draws predictions of a row)

In Python, with this file's folder on the path::

    from predict import load
    model = load()                 # of the folder of this file
    found = model(rows)            # arrays by name: "mean", "sd", "quantiles", or "probabilities"
    model(rows, levels=[0.01, 0.99])["quantiles"]
"""

import csv
import io
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import numpy as np
from jax import export

FORMAT = 1
_SERVED_LEVELS = (np.arange(199) + 0.5) / 199
_EMPTY = {"", "nan", "na", "n/a", "null", "<na>", "nat", "#n/a", "#na", "-nan", "?", "-", "--"}
_EMPTY |= {"#n/a n/a", "1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "#value!", "#div/0!"}
_TRUTH = dict.fromkeys(("true", "yes", "y", "t", "on", "1", "1.0"), 1.0)
_TRUTH |= dict.fromkeys(("false", "no", "n", "f", "off", "0", "0.0"), 0.0)
_DATE = re.compile(
    r"(\d{4})([-/.])(\d\d?)(?:\2(\d\d?)(?:[t ,]+(\d\d?)(:\d\d(?::\d\d(?:[.,]\d+)?)?)"
    r"(?: ?([ap])m)?(?: ?(?:z|utc|gmt|([+-]\d\d:?\d\d)))?)?)?"
)
_CYCLES = {"year": 365.2425, "week": 7.0, "day": 1.0}  # in days
_EPOCH, _A_DAY = datetime(1970, 1, 1, tzinfo=UTC), timedelta(days=1)
Cells = Sequence[Any]


# --- columns of a table: how a cell of each kind is read, NaN where it is empty; add others here


def _number(column: Mapping[str, Any], cell: str) -> float:
    found = {"True": 1.0, "False": 0.0}.get(cell, _float(cell))  # where training rows had 1 and 0
    return _known(column, cell, found, "a finite number")


def _float(cell: str) -> float:
    try:
        return np.nan if "_" in cell else float(cell)
    except ValueError:
        return np.nan


def _date(column: Mapping[str, Any], cell: str) -> float:
    """Read days since 1970."""
    text = "" if "W" in cell else cell  # weeks are no dates
    match = _DATE.fullmatch(cell.lower())
    if match and not (match[7] and int(match[5]) > 12):  # 13 AM is none
        year, _, month, day, hour, rest, half, offset = match.groups()
        hours = int(hour or 0) + 12 * (half == "p") - 12 * (half is not None and hour == "12")
        text = f"{year}-{month:0>2}-{day or 1:0>2}T{hours:02}{rest or ':00'}{offset or 'Z'}"
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return _known(column, cell, np.nan, "a date as 2026-11-29")
    return (found.replace(tzinfo=found.tzinfo or UTC) - _EPOCH) / _A_DAY


def _category(column: Mapping[str, Any], cell: str) -> float:
    names = column["categories"]
    if cell in names:
        return float(names.index(cell))
    number = _float(cell)
    same = [k for k, name in enumerate(names) if number == number and _float(name) == number]
    if len(same) == 1:  # 2.0 is 2
        return float(same[0])
    found = float(len(names)) if column.get("other") else np.nan
    return _known(column, cell, found, f"one of {', '.join(names)}")


def _known(column: Mapping[str, Any], cell: str, found: float, expected: str) -> float:
    if not np.isfinite(found):
        raise ValueError(f"got {cell!r} in the column {column['name']!r}, expected {expected}")
    return float(found)


KINDS: dict[str, Callable[[Mapping[str, Any], str], float]] = {
    "number": _number,
    "boolean": lambda column, cell: _known(
        column, cell, _TRUTH.get(cell.lower(), np.nan), "True or False"
    ),
    "date": _date,
    "category": _category,
    # A number or a truth value; is `fill`, if it has one, where the table has no such column.
    "optional": lambda column, cell: _number(column, str(_TRUTH.get(cell.lower(), cell))),
}
FORMS = {"number": ".", "date": "iso"}  # of cells, that are read here


def encoded(columns: Sequence[Mapping[str, Any]], table: Mapping[str, Cells]) -> np.ndarray:
    """Make numbers (rows, columns) of the cells of a table, by the names of its columns."""
    needed = [c["name"] for c in columns if c["kind"] != "optional" or c["fill"] is None]
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(f"got a table without {', '.join(missing)}, expected {', '.join(needed)}")
    empty = [""] * len(next(iter(table.values())))
    cells = [[_text(cell) for cell in table.get(each["name"], empty)] for each in columns]
    return np.concatenate([*map(_spread, columns, cells)], axis=1)


def _spread(column: Mapping[str, Any], cells: Cells) -> np.ndarray:
    """Make the columns of x (rows, columns) of the cells of one column."""
    values = np.array([_value(column, cell) for cell in cells], float)
    kind, marked = column["kind"], column.get("marked", False)
    if kind == "category":
        width = len(column["categories"]) + (1 + marked if column.get("other") else 0)
        return np.equal.outer(values, np.arange(width)).astype(float)
    empty = np.isnan(values)
    filled = np.where(empty, np.nan if column["fill"] is None else column["fill"], values)
    found = [filled - (column.get("low") or 0.0) if kind == "date" else filled]
    for name in column.get("cycles", ()):
        angle = 2 * np.pi * filled / _CYCLES[name]
        found += [np.sin(angle), np.cos(angle)]
    return np.stack([*found, *[empty.astype(float)] * marked], axis=1)


def _value(column: Mapping[str, Any], text: str) -> float:
    """Give the number of a cell; of an empty one NaN, or its place among categories."""
    fill, is_category = column["fill"], column["kind"] == "category"
    if text.lower() not in _EMPTY and text != "None":
        return KINDS[column["kind"]](column, text)
    if is_category and column.get("other"):
        names = column["categories"]
        return float(names.index(text) if text in names else len(names) + column.get("marked", 0))
    if fill is None or is_category:
        return KINDS[column["kind"]](column, text if fill is None else _text(fill))
    return np.nan


def _text(cell: Any) -> str:
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return "" if cell is None else str(cell).strip()


# --- the network


class Predictor:
    """An exported network, its draws on the device, and how rows are prepared for it."""

    def __init__(self, folder: Path) -> None:
        """Read the files of the export."""
        self.about = json.loads((folder / "preparation.json").read_text(encoding="utf-8"))
        if self.about["format"] != FORMAT:
            got = f"got an export of format {self.about['format']}, expected {FORMAT}"
            raise ValueError(f"{got}: use the predict.py of its own folder")
        unknown = {each["kind"] for each in self.about["columns"] or ()} - {*KINDS}
        if unknown:
            got = f"got columns of the kind {', '.join(sorted(unknown))}"
            raise ValueError(f"{got}, expected {', '.join(KINDS)}: add the kind to KINDS")
        if self.about["float64"] and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
            jax.config.update("jax_enable_x64", True)
        program = export.deserialize(bytearray((folder / "model.stablehlo").read_bytes()))
        self._call = jax.jit(program.call)
        with np.load(folder / "draws.npz") as file:
            names = range(self.about["num_arrays"])
            self._arrays = [jax.device_put(file[f"array_{n}"]) for n in names]
            self._weights = jax.device_put(file["weights"])

    def __call__(self, rows: Any, levels: Any = None) -> dict[str, np.ndarray]:
        """Predict rows in the units of the data.

        Rows are an array, a table as a mapping of columns (a data frame is one), a list of
        mappings, or the path of a file. Of numbers the answer has "mean", "sd", "epistemic_sd"
        (the part from the weights) and "quantiles" (row, level, ...), in the units of the data; of
        classes "probabilities", and "entropy", "expected_entropy" and "mutual_information" in nats.
        """
        return self.in_units(self.predicted(self.prepared(rows), levels))

    def prepared(self, rows: Any) -> np.ndarray:
        """Give rows as the network sees them."""
        names = [column["name"] for column in self.about["columns"] or ()]
        rows = _read(Path(rows), names) if isinstance(rows, str | Path) else rows
        if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            rows = {name: [row.get(name) for row in rows] for name in rows[0]}
        columns, shape = self.about["columns"], tuple(self.about["x_shape"])
        if hasattr(rows, "columns") or isinstance(rows, Mapping):
            table = {str(name): list(rows[name]) for name in rows}
            x = encoded(columns, table) if columns else _by_number(table, shape)
        elif columns and np.asarray(rows).dtype.kind in "OU":
            needed = [c["name"] for c in columns if c["kind"] != "optional" or c["fill"] is None]
            cells = np.asarray(rows, object).T
            if len(cells) != len(needed):
                raise ValueError(f"got {len(cells)} columns, expected {', '.join(needed)}")
            x = encoded(columns, dict(zip(needed, cells, strict=True)))
        else:
            x = np.asarray(rows)
        if x.ndim == len(shape) and shape and shape[-1] == 1:
            x = x[..., None]  # images without a channel
        if x.shape[1:] != shape:
            raise ValueError(f"got rows of shape {x.shape[1:]}, expected {shape}")
        mean, scale = (np.asarray(self.about[name]) for name in ("x_mean", "x_scale"))
        x = np.asarray((x - mean) / scale, self.about["x_type"])
        if not np.isfinite(x).all():
            raise ValueError("got x that is not finite, expected numbers: correct these rows")
        return x

    def predicted(self, x: np.ndarray, levels: Any = None) -> dict[str, np.ndarray]:
        """Give what the program gives for prepared rows, in the units of the network."""
        given = np.asarray(self.about["levels"] if levels is None else levels, self._weights.dtype)
        size, parts = self.about["batch_size"], []
        for start in range(0, len(x), size):
            rows = x[start : start + size]
            # Numbers of rows that are powers of two: few programs are compiled.
            padding = (1 << (len(rows) - 1).bit_length()) - len(rows)
            padded = np.concatenate([rows, np.repeat(rows[-1:], padding, axis=0)])
            found = self._call(self._arrays, self._weights, given, padded)
            parts.append({name: np.asarray(own)[: len(rows)] for name, own in found.items()})
        if not parts:
            raise ValueError("got no rows, expected at least one")
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def in_units(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Give what the program gave in the units of the data."""
        found = {name: values.astype(float) for name, values in found.items()}
        if "probs" in found:
            probs = found["probs"]
            entropy = -np.sum(probs * np.log(np.maximum(probs, 1e-38)), -1)
            return {
                "probabilities": probs,
                "entropy": entropy,
                "expected_entropy": found["expected_entropy"],
                "mutual_information": entropy - found["expected_entropy"],
            }
        mean, scale = (np.asarray(self.about[name]) for name in ("y_mean", "y_scale"))
        answers = {
            "mean": found["mean"] * scale + mean,
            "sd": np.sqrt(found["variance"]) * scale,
            "epistemic_sd": np.sqrt(found["epistemic_variance"]) * scale,
        }
        if "quantiles" in found:
            answers["quantiles"] = found["quantiles"] * scale + mean
        return answers

    def columns_of(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Give predictions as the columns of a table."""
        columns: dict[str, np.ndarray] = {}
        if "probabilities" in found:
            probs = found.pop("probabilities")
            names = self.about["classes"] or range(probs.shape[-1])
            flat = probs.reshape(len(probs), -1, probs.shape[-1])
            if flat.shape[1] > 1:
                raise ValueError("got classes of pixels, expected one for each row: use load()")
            columns |= {f"probability_{k}": own for k, own in zip(names, flat[:, 0].T, strict=True)}
            columns["predicted"] = np.asarray(list(names))[flat[:, 0].argmax(1)]
        if "quantiles" in found:
            each = np.moveaxis(found.pop("quantiles"), 1, 0)
            found |= {f"quantile_{q:g}": v for q, v in zip(self.about["levels"], each, strict=True)}
        for name, values in found.items():
            if values.ndim == 1:
                columns[name] = values
            else:
                outputs = self.about["outputs"] or range(values.shape[1])
                columns |= {f"{name}_{k}": v for k, v in zip(outputs, values.T, strict=True)}
        return columns


def load(folder: str | Path | None = None) -> Predictor:
    """Load the export in a folder, by default that of this file."""
    return Predictor(Path(__file__).parent if folder is None else Path(folder))


def _read(path: Path, names: Sequence[str] = ()) -> Any:
    if path.suffix in (".npy", ".npz"):
        try:
            return np.load(path) if path.suffix == ".npy" else np.load(path)["x"]
        except (LookupError, ValueError, EOFError, BadZipFile, zlib.error):
            raise ValueError(f"got {path.name}, expected a whole file with an array x") from None
    if str(path) != "-" and path.suffix not in (".csv", ".tsv", ".txt"):
        raise ValueError(f"got {path.name}, expected a .csv, .tsv, .txt, .npz or .npy file")
    content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252")  # of Windows
    separator = max("\t,;|", key=text.lstrip("\r\n").partition("\n")[0].count)
    lines = csv.reader(io.StringIO(text, newline=None), delimiter=separator)
    rows = [[cell.strip() for cell in line] for line in lines if line]
    if not rows:
        raise ValueError("got an empty file, expected rows")
    counted = [str(number) for number in range(len(rows[0]))]
    unnamed = set(names) <= {str(number) for number in range(len(names) + 1)}  # y among them
    named = set(names) <= set(rows[0]) if not unnamed else len(counted) > 1 and rows[0] == counted
    if all(map(_is_number, rows[0])) and not named:  # no header
        rows.insert(0, list(names) if unnamed and len(names) == len(counted) else counted)
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"got {len(row)} cells in line {number + 1}, expected {len(rows[0])}")
    if separator == ";":  # with decimal commas
        rows[1:] = [[c.replace(",", ".") if _is_number(c) else c for c in row] for row in rows[1:]]
    counts = Counter(name for name in rows[0] if name and (name in names or not names))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"got several columns {', '.join(twice)}, expected a name for each")
    cells = list(zip(*rows[1:], strict=True)) or [()] * len(rows[0])
    return {name: list(own) for name, own in zip(rows[0], cells, strict=True)}


def _is_number(cell: str) -> bool:
    return cell.lower() == "nan" or not np.isnan(_float(cell.replace(",", ".")))


def _by_number(table: Mapping[str, Cells], shape: tuple[int, ...]) -> np.ndarray:
    """Give the columns of a table in their order: the model knows no names."""
    count = int(np.prod(shape))
    table = {n: own for n, own in table.items() if n not in ("", "Unnamed: 0")}  # an index
    if len(table) not in (count, count + 1):  # y may stand last
        raise ValueError(f"got {len(table)} columns, expected {count} as in training")
    columns = [{"name": n, "kind": "number", "fill": None} for n in list(table)[:count]]
    return encoded(columns, table).reshape(-1, *shape)


def _write(columns: Mapping[str, np.ndarray]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["row", *columns])
    cells = (values.tolist() for values in columns.values())
    writer.writerows([row, *own] for row, own in enumerate(zip(*cells, strict=True)))


class _Page(BaseHTTPRequestHandler):
    def __init__(self, model: Predictor, *given: Any) -> None:
        self.model = model
        super().__init__(*given)

    def do_GET(self) -> None:
        """Give the page, and what it needs to know of the columns."""
        if self.path == "/about":
            self._send(json.dumps(self.model.about).encode(), "application/json")
        elif self.path == "/":
            page = Path(__file__).with_name("page.html").read_bytes()
            self._send(page, "text/html; charset=utf-8")
        else:
            self._send(b"not found", "text/plain", 404)

    def do_POST(self) -> None:
        """Predict the rows that are sent as JSON: a list of {column: cell}, or of arrays."""
        try:
            rows = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            found = self.model(rows, _SERVED_LEVELS)
            answer = {name: values.tolist() for name, values in found.items()}
            answer |= {"levels": _SERVED_LEVELS.tolist()} if "quantiles" in found else {}
            self._send(json.dumps(answer).encode(), "application/json")
        except (ValueError, TypeError, KeyError) as error:
            self._send(json.dumps({"error": str(error)}).encode(), "application/json", 400)

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def serve(port: int, folder: str | Path | None = None) -> None:
    """Serve a page on this machine alone, until Ctrl-C."""
    page = partial(_Page, load(folder))
    with suppress(KeyboardInterrupt), HTTPServer(("127.0.0.1", port), page) as server:
        print(f"http://127.0.0.1:{server.server_port} (Ctrl-C ends)", flush=True)
        server.serve_forever()


def main(words: Sequence[str]) -> int:
    """Answer the command line."""
    try:
        if words[:1] == ["--serve"] and len(words) <= 2:
            serve(int(words[1]) if words[1:] else 8000)
        elif len(words) == 1 and words[0] not in ("-h", "--help"):
            model = load()
            _write(model.columns_of(model(words[0])))
        else:
            print(__doc__.strip())
            return 0 if words else 2
    except (ValueError, OSError) as error:
        print(f"predict.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
