"""What NCCL's parameters are worth, and how much of it a job finds by itself.

    python experiments/nccl/run.py --links sockets --networks vgg16 --who ours ddp
    python experiments/nccl/run.py --device cpu --tiny --links sockets --networks vgg16  # dry run
    python experiments/nccl/run.py --report

    python experiments/nccl/run.py --links "two hosts, 10 Gbit/s"   # root

For each network and link one job per setting of NCCL's start-up variables, one with NCCL's
defaults, one that tunes itself from a cold start, and one without communication: all alive at once.
They take turns in random orders. The gain of a setting is the median, over rounds, of
``step time(defaults) / step time(setting) - 1``.

Writes results/LINK-NETWORK-WHO.json.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import BIN, FLAGS, job_environment

from cluster.hosts import DEVICE, TwoHosts

HERE = Path(__file__).resolve().parent
LINKS: dict[str, dict[str, str]] = {
    "nvlink": {},
    "shared memory": {"NCCL_P2P_DISABLE": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    "two hosts": {},
    "two hosts, 10 Gbit/s": {},
}
RATES: dict[str, float | None] = {"two hosts": None, "two hosts, 10 Gbit/s": 10_000}
"""In Mbit/s, of links between network namespaces with a GPU each."""


def channels(count: int) -> dict[str, str]:
    return {"NCCL_MIN_NCHANNELS": str(count), "NCCL_MAX_NCHANNELS": str(count)}


def sockets(threads: int, each: int, count: int = 0) -> dict[str, str]:
    found = {"NCCL_SOCKET_NTHREADS": str(threads), "NCCL_NSOCKS_PERTHREAD": str(each)}
    return found | (channels(count) if count else {})


BUFFER = {"NCCL_BUFFSIZE": str(2**20)}
SWEEP: dict[str, dict[str, dict[str, str]]] = {
    "nvlink": {
        "defaults, another job": {},  # what two equal jobs differ by
        "channels 16": channels(16),
        "channels 32": channels(32),
    },
    "shared memory": {
        "channels 8": channels(8),
        "channels 16": channels(16),
        "channels 8, 1 MiB": channels(8) | BUFFER,
        "channels 16, 1 MiB": channels(16) | BUFFER,
        "channels 32, 1 MiB": channels(32) | BUFFER,
    },
    "sockets": {
        "2 x 1, channels 8": sockets(2, 1, 8),
        "2 x 2, channels 4": sockets(2, 2, 4),
        "4 x 1, channels 4": sockets(4, 1, 4),
        "4 x 4": sockets(4, 4),
    },
}
SWEEP |= dict.fromkeys(RATES, SWEEP["sockets"])


class Job:
    """One job of two or more ranks, which waits for its turns.

    Args:
        words: Arguments of ``rank.py``.
        environ: Variables of the job.
        ranks: How many.
        hosts: Where a rank has a host of its own; None: all are on this one.
    """

    def __init__(
        self, words: list[str], environ: dict[str, str], ranks: int, hosts: TwoHosts | None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nccl-"))
        self.errors: list[str] = []
        script = [sys.executable, str(HERE / "rank.py"), *words, "--folder", str(self.folder)]
        self._process = (
            _on_this_host(script, environ, ranks)
            if hosts is None
            else hosts.start_on_a(
                [*hosts.without_mpi((1, 1)), *script],
                **{"OMP_NUM_THREADS": "1", "ONE_GPU_A_HOST": "1"},
                **{f"{name}_SOCKET_IFNAME": DEVICE for name in ("NCCL", "GLOO")},
                **environ,
            )
        )
        self._turns = 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        self.errors.extend(self._process.stderr)

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("SAYS "):
                return dict(json.loads(line.removeprefix("SAYS ")))
        time.sleep(0.5)
        raise RuntimeError("".join(self.errors[-25:]))

    def tune(self) -> None:
        self._write("tune", "")

    def turn(self, steps: int) -> float:
        self._write(f"turn-{self._turns}", str(steps))
        self._turns += 1
        return float(self.hear()["ms"])

    def end(self) -> None:
        self._write("end", "")
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        new = self.folder / f".{name}"
        new.write_text(text)
        new.rename(self.folder / name)


def _on_this_host(words: list[str], environ: dict[str, str], ranks: int) -> subprocess.Popen[str]:
    own = BIN / "mpirun"
    mpirun = str(own) if own.exists() else shutil.which("mpirun") or "mpirun"
    return subprocess.Popen(
        [mpirun, "-n", str(ranks), *FLAGS, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**job_environment(), **environ},
    )


def compare(options: argparse.Namespace, link: str, network: str, who: str) -> dict[str, Any]:
    """Run all jobs of one network on one link, and let them take turns."""
    more = ["--device", options.device, *["--tiny"] * options.tiny]
    plain = {**LINKS[link], "HOROVOD_AUTOTUNE": "0"}
    swept = {} if options.no_sweep else SWEEP[link]
    swept = {name: swept[name] for name in swept if not options.only or name in options.only}
    logs = Path(tempfile.mkdtemp(prefix="nccl-log-"))
    tuned = {
        **LINKS[link],
        "HOROVOD_AUTOTUNE": "1",
        "HOROVOD_AUTOTUNE_LOG": str(logs / "log.csv"),
        "XDG_CACHE_HOME": str(logs),
        "HOROVOD_AUTOTUNE_EXPLORE": options.explore,
    }
    jobs = {}
    between = TwoHosts(RATES[link]) if link in RATES else None
    try:
        hosts = between.__enter__() if between is not None else None

        def start(words: list[str], environ: dict[str, str]) -> Job:
            return Job([*words, *more], environ, options.ranks, hosts)

        jobs["tuned"] = start([who, network, "--tune-s", str(options.tune_s)], tuned)
        jobs["tuned"].tune()
        told = {"tuned": jobs["tuned"].hear()}  # alone: nothing else is on the GPUs
        jobs["alone"] = start(["alone", network], plain)
        jobs["default"] = start([who, network], plain)
        for name, variables in swept.items():
            jobs[name] = start([who, network], plain | variables)
        for name, job in jobs.items():
            if name not in told:
                told[name] = job.hear()
        length = {
            name: max(4, round(1000 * options.turn_s / job.turn(4))) for name, job in jobs.items()
        }
        rounds: list[dict[str, float]] = []
        order, begin = random.Random(1), time.monotonic()
        while len(rounds) < 3 or time.monotonic() - begin < options.seconds:
            names = order.sample(list(jobs), len(jobs))
            rounds.append({name: jobs[name].turn(length[name]) for name in names})
        said = [one.strip().replace(f"{logs}/", "") for one in jobs["tuned"].errors]
        lines = [one for one in said if "autotune" in one or "[ddp]" in one]
        return {
            "link": link,
            "network": network,
            "who": who,
            "ranks": options.ranks,
            "told": told,
            "rounds": rounds,
            "log": (logs / "log.csv").read_text().splitlines()
            if (logs / "log.csv").exists()
            else [],
            "lines": lines,
        }
    finally:
        for job in jobs.values():
            job.end()
        if between is not None:
            between.close()
        shutil.rmtree(logs, ignore_errors=True)


def gain(rounds: list[dict[str, float]], name: str) -> float:
    return statistics.median(row["default"] / row[name] - 1 for row in rounds)


def table(found: dict[str, Any]) -> str:
    """Return one comparison for people."""
    rounds = found["rounds"]
    lines = [f"{found['link']}, {found['network']}, {found['who']}, {len(rounds)} rounds"]
    for name in rounds[0]:
        values = [row[name] for row in rounds]
        lines.append(
            f"  {name:22} {statistics.median(values):8.2f} ms ({min(values):.2f} to "
            f"{max(values):.2f})  gain {100 * gain(rounds, name):+.1f} %"
        )
    told = found["told"]["tuned"]
    lines.append(f"  tuned in {told['tuning_s']:.0f} s, {told['steps']} steps: {told['state']}")
    lines += [f"    {one[:230]}" for one in found["lines"] if "start-up" in one or "done" in one]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--networks", nargs="+", default=["vgg16", "resnet50", "gpt350m"])
    parser.add_argument("--who", nargs="+", choices=["ours", "ddp"], default=["ours", "ddp"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small networks, for dry runs")
    parser.add_argument("--tune-s", type=float, default=120, help="at most, of the tuned job")
    parser.add_argument("--seconds", type=float, default=25, help="of taking turns")
    parser.add_argument("--turn-s", type=float, default=0.25, help="of one turn")
    parser.add_argument("--no-sweep", action="store_true", help="default and tuned alone")
    parser.add_argument("--explore", default="", help="of the tuned job: fp16 or bf16")
    parser.add_argument("--only", nargs="+", default=[], help="of the sweep")
    parser.add_argument("--output", type=Path, default=HERE / "results")
    parser.add_argument("--report", action="store_true", help="print the stored tables only")
    options = parser.parse_args()
    if not options.report:
        options.output.mkdir(parents=True, exist_ok=True)
        for link in options.links:
            for network in options.networks:
                for who in options.who:
                    try:
                        found = compare(options, link, network, who)
                    except RuntimeError as error:
                        print(f"{link} {network} {who}: {error}", file=sys.stderr, flush=True)
                        continue
                    place = link.replace(",", "").replace(" ", "_").replace("/", "_")
                    name = (
                        "-".join([place, network, who, *filter(None, [options.explore])]) + ".json"
                    )
                    (options.output / name).write_text(json.dumps(found, indent=1) + "\n")
                    print(table(found), flush=True)
    else:
        for path in sorted(options.output.glob("*.json")):
            print(table(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
