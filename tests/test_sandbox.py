"""Attacks on run_program, judged by files outside, the process list or our memory, each with a control: what the same
program (or a harmless kin) does as an ordinary child, so that no test passes because its attack is dull.

What this machine's sandbox says it does not cover is skipped by that name; as root with bwrap nothing is skipped.
"""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from pathlib import Path

import pytest

import common
from common import run_program
from evaluators import circles

CASES = {c["id"]: c for c in map(json.loads, Path(__file__).with_name("cases.jsonl").read_text("utf-8").splitlines())}
ROOT = os.geteuid() == 0


def attack(program, *, timeout_s=3, memory_mb=512, **options):
    return run_program(textwrap.dedent(program), timeout_s=timeout_s, memory_mb=memory_mb, **options)


def control(program, cwd, *, seconds=10.0, **options):
    """The program as an ordinary child, held by nothing. Its output goes to a file: a daemon would keep a pipe open."""
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(argv, cwd=cwd, stdout=out, stderr=out, timeout=seconds, check=False, **options)
        out.seek(0)
        return subprocess.CompletedProcess(argv, done.returncode, out.read())


def needs(gap):
    """Skip where sandbox() itself says that this is open on this machine."""
    if any(said.startswith(gap) for said in common.sandbox()["not_covered"]):
        pytest.skip(f"{common.sandbox()['name']} on this machine does not cover: {gap}")


def alive(marker):
    """Process ids whose command line holds the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.fixture
def outside(tmp_path):
    """A folder that anybody may write to, so that it is not its mode that protects it."""
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o777)
    return tmp_path


@pytest.fixture
def marker():
    name = f"marker-{uuid.uuid4().hex}"
    yield name
    for pid in alive(name):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def temporary(outside):
    """The only place for temporary folders, so that it can be seen what is left in it."""
    folder, before = outside / "temporary", tempfile.tempdir
    folder.mkdir(mode=0o777)
    tempfile.tempdir = str(folder)
    yield folder
    tempfile.tempdir = before


# 1. Nothing is left running, and nobody else is hurt

DAEMON = """
    import os, sys
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)", "{}"], {{}})
        os._exit(0)
    os.wait()
    import time; time.sleep(0.3)
"""


def test_run_program_leaves_no_double_forked_daemon(marker, tmp_path):
    needs("a daemon")
    assert attack(DAEMON.format(marker)).status == "ok"
    assert not alive(marker)
    control(DAEMON.format(marker), tmp_path)
    assert alive(marker)


def test_run_program_kills_a_child_beside_an_ignored_sigterm(marker, tmp_path):
    case = CASES[18]
    program = case["input"]["program"].replace("sleep(300)", f"sleep(300)  # {marker}")
    run = run_program(program, timeout_s=case["input"]["timeout_s"], memory_mb=512)
    assert run.status == case["expected"]["verdict"]
    assert run.wall_s < case["expected"]["max_wall_s"]
    assert len(alive(marker)) == case["expected"]["leftover_processes"]
    plain = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path)
    assert wait_until(lambda: len(alive(marker)) == 2)
    plain.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        plain.wait(0.3)
    plain.kill()
    plain.wait()
    assert alive(marker)  # the grandchild, which is what a timeout that kills only its child leaves behind


def test_run_program_ends_an_endless_loop_by_cpu_time(tmp_path):
    run = attack("while True: pass", timeout_s=1)
    assert run.status == "timeout"
    assert run.cpu_s < 1.6
    with pytest.raises(subprocess.TimeoutExpired):
        control("while True: pass", tmp_path, seconds=1.5)


def test_run_program_ends_a_loop_that_ignores_sigxcpu_and_raises_its_limits(tmp_path):
    program = """
        import resource, signal
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):
            try:
                resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                print("raised", flush=True)
            except (ValueError, OSError):
                pass
        {}
    """
    run = attack(program.format("while True: pass"), timeout_s=1)
    assert (run.status, run.stdout) == ("timeout", "")
    assert "raised" in control(program.format(""), tmp_path).stdout


def test_run_program_ends_sleepers_and_tells_their_cpu_time(tmp_path):
    program = "import time\nsum(range(6_000_000))\ntime.sleep(60)"
    run = attack(program, timeout_s=1)
    assert run.status == "timeout"
    assert run.wall_s < 5
    assert run.cpu_s > 0.02
    with pytest.raises(subprocess.TimeoutExpired):
        control(program, tmp_path, seconds=1.5)


FORKS = """
    import os, time
    made = 0
    for _ in range(100):
        try:
            if os.fork() == 0:
                time.sleep(1)
                os._exit(0)
            made += 1
        except OSError:
            break
    print(made)
"""


def test_run_program_limits_forks(tmp_path):
    needs("fork bombs")
    assert int(attack(FORKS).stdout) < common.PROCESSES
    assert int(control(FORKS, tmp_path).stdout) == 100


def test_run_program_survives_a_fork_bomb(marker):
    needs("fork bombs")
    bomb = "import os, sys\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    run = attack(f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {bomb!r}, '{marker}'])", timeout_s=1)
    assert run.status == "timeout"
    assert run.wall_s < 15
    assert not alive(marker)


def test_run_program_ends_many_children_that_burn_cpu(marker, tmp_path):
    burn = f"[subprocess.Popen([sys.executable, '-c', 'while 1: pass', '{marker}']) for _ in range(4)]"
    run = attack(f"import subprocess, sys, time\n{burn}\ntime.sleep(60)", timeout_s=1)
    assert run.status == "timeout"
    assert not alive(marker)
    control(f"import subprocess, sys\n{burn}", tmp_path)
    assert len(alive(marker)) == 4


SHOT = "import os, signal\nos.kill({}, signal.SIGKILL)\nprint('missed', flush=True)"


def test_run_program_keeps_us_from_being_killed_as_the_parent(tmp_path):
    run = attack(SHOT.format("os.getppid()"))
    assert run.status in ("ok", "runtime_error", "memory")
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SHOT.format('os.getppid()')!r}])\n"
    assert control(program, tmp_path).returncode == -signal.SIGKILL


def test_run_program_keeps_everybody_from_being_killed(marker):
    needs("signals")
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", marker])
    for victims in ("-1", "0", "1"):
        attack(SHOT.format(victims))
    assert bystander.poll() is None
    harmless = f"import os\nos.kill({bystander.pid}, 0)"  # only asks whether it could; as a control -1 would end us all
    assert attack(harmless).status == "runtime_error"
    assert control(harmless, ".").returncode == 0
    bystander.kill()
    bystander.wait()


def test_run_program_dies_with_a_killed_engine(marker):
    needs("programs outlive")
    sleeper = (
        f"import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(60)', '{marker}'])"
    )
    engine = f"import common; common.run_program({sleeper!r}, timeout_s=50, memory_mb=512)"
    ordinary = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {sleeper!r}])"
    for program, survives in ((engine, False), (ordinary, True)):
        parent = subprocess.Popen([sys.executable, "-c", program], cwd=Path(common.__file__).parent)
        assert wait_until(lambda: running(marker), 10)
        parent.kill()
        parent.wait()
        assert wait_until(lambda wanted=survives: bool(running(marker)) == wanted)


def running(marker):
    """The sleepers themselves, not the engine whose source names the marker too."""
    return [p for p in alive(marker) if Path(f"/proc/{p}/cmdline").read_bytes().endswith(f"{marker}\0".encode())]


# 2. Memory, files, output


def test_run_program_tells_a_memory_bomb_from_a_crash(tmp_path):
    case, before = CASES[26], peak_mb()
    limits = {k: case["input"][k] for k in ("timeout_s", "memory_mb")}
    run = run_program(case["input"]["program"], **limits)
    assert run.status in case["expected"]["verdict_any_of"]
    assert any(word in run.stderr for word in case["expected"]["stderr_or_reason_contains_any_of"])
    assert run.wall_s < case["expected"]["max_wall_s"]
    assert peak_mb() - before < 64
    harmless = "block = bytes(300 << 20)\nprint('got it')"
    assert attack(harmless, memory_mb=256).status == "memory"
    assert control(harmless, tmp_path).stdout == "got it\n"


def test_run_program_caps_the_memory_numpy_asks_for(tmp_path):
    program = "import numpy\nprint(len(numpy.empty(1 << 28)))"  # 2 GiB, not one page of it touched
    assert attack(program, memory_mb=1024).status == "memory"
    assert control(program, tmp_path).stdout == f"{1 << 28}\n"


def test_run_program_caps_a_file(tmp_path):
    program = "with open('big', 'wb') as f:\n    f.truncate(10 << 30)\nprint('10 GiB')"
    assert attack(program).stdout == ""
    assert "OSError" in attack("with open('big', 'wb') as f:\n    while True: f.write(bytes(1 << 20))").stderr
    assert control(program, tmp_path).stdout == "10 GiB\n"  # sparse, so it costs nothing


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_run_program_caps_a_flood_of(stream):
    case, before = CASES[20], peak_mb()
    program = case["input"]["program"].replace("'x' * 1000000", f"'x' * 1000000, file=__import__('sys').{stream}")
    run = run_program(program, timeout_s=case["input"]["timeout_s"], memory_mb=512)
    assert run.status in case["expected"]["verdict_any_of"]
    assert run.wall_s < case["expected"]["max_wall_s"]
    assert len(run.stdout) + len(run.stderr) <= 2 * case["expected"]["captured_bytes_max"]
    assert peak_mb() - before < case["expected"]["parent_rss_growth_mb_max"]


def test_run_program_flood_would_fill_memory_without_it(tmp_path):
    assert len(control("print('x' * 3_000_000)", tmp_path).stdout) > 3_000_000
    assert len(attack("print('x' * 3_000_000)").stdout) == common.OUTPUT_BYTES


def test_run_program_does_not_call_a_flood_ok():
    assert attack("print('x' * (1 << 20))").status == "output_limit"
    assert attack("print('x' * 1_000_000)").status == "ok"


def test_run_program_caps_a_result(tmp_path):
    program = "open('result.json', 'w').write('1' * (64 << 20))"
    run = attack(program, expect_result=True)
    assert run.status == "runtime_error"
    assert len(run.result or "") <= common.FILE_BYTES
    control(program, tmp_path)
    assert (tmp_path / "result.json").stat().st_size == 64 << 20


# 3. What it reads and writes


def test_run_program_has_no_network(tmp_path):
    needs("network")
    with socket.create_server(("127.0.0.1", 0)) as server:
        program = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 2)\nprint('in')"
        assert attack(program).stdout == ""
        assert control(program, tmp_path).stdout == "in\n"


def test_run_program_hides_our_environment(tmp_path):
    program = """
        import os, pathlib
        seen = str(dict(os.environ)).encode()
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                seen += path.read_bytes()
            except OSError:
                pass
        print(b"sesame" in seen)
    """
    holder = subprocess.Popen(["sleep", "60"], env={**os.environ, "API_KEY": "sesame"})
    os.environ["API_KEY"] = "sesame"
    try:
        own = attack("import os\nprint(sorted(os.environ))").stdout
        assert "API_KEY" not in own
        if common.sandbox()["name"] != "process group" or ROOT:
            assert attack(program).stdout == "False\n"
        assert control(program, tmp_path).stdout == "True\n"
    finally:
        del os.environ["API_KEY"]
        holder.kill()
        holder.wait()


def test_run_program_passes_on_no_open_file(tmp_path):
    (tmp_path / "secret").write_text("sesame")
    program = """
        import os
        for name in os.listdir("/proc/self/fd"):
            try:
                os.lseek(int(name), 0, 0)
                print(os.read(int(name), 100))
            except OSError:
                pass
    """
    with open(tmp_path / "secret") as file:
        os.set_inheritable(file.fileno(), True)
        assert "sesame" not in attack(program).stdout
        assert "sesame" in control(program, tmp_path, close_fds=False).stdout


WRITE = """
import pathlib
for path in {}:
    try:
        pathlib.Path(path).write_text("x")
    except OSError:
        pass
"""


def test_run_program_writes_nothing_outside(outside, tmp_path):
    needs("files")
    name = f"sentinel-{uuid.uuid4().hex}"
    homes = ["/home", "/root", Path.home(), Path(common.__file__).parent]
    places = ["/tmp", "/var/tmp", "/run", "/dev", "/", "/etc", *homes]
    paths = [str(Path(p) / name) for p in (outside, *places)]
    attack(WRITE.format(paths))
    assert [p for p in paths if os.path.exists(p)] == []
    control(WRITE.format(paths[:2]), tmp_path)
    assert [os.path.exists(p) for p in paths[:2]] == [True, True]
    Path(paths[1]).unlink()


def test_run_program_keeps_no_state_for_the_next():
    needs("files")
    name = f"state-{uuid.uuid4().hex}"
    paths = [f"{p}/{name}" for p in ("/tmp", "/var/tmp", "/run", "/dev/shm", "/dev", ".", "..")] + [f"~/{name}"]
    look = f"import os\nprint([p for p in {paths} if os.path.exists(os.path.expanduser(p))])"
    attack(f"import os\n{WRITE.format(f'map(os.path.expanduser, {paths})')}")
    assert attack(look).stdout == "[]\n"
    control(WRITE.format(paths[:1]), ".")
    assert name in control(look, ".").stdout
    Path(paths[0]).unlink()


def test_run_program_reads_nobody_s_home(outside):
    needs("files")
    secret = outside / "secret"
    secret.write_text("sesame")
    secret.chmod(0o666)
    program = f"import os\nprint(open({str(secret)!r}).read())\n"
    assert attack(program).status == "runtime_error"
    assert control(program, outside).stdout == "sesame\n"
    assert (
        attack(
            "import os\nprint(sum(os.path.exists(f'{p}/.profile') for p in ('/root', os.path.expanduser('~'))))"
        ).stdout
        == "0\n"
    )


def test_run_program_leaves_no_shared_memory(tmp_path):
    needs("signals")  # the two gaps have one cause: no namespaces
    if common.sandbox()["name"] == "process group":
        pytest.skip("process group has no IPC namespace")
    key = uuid.uuid4().int % (1 << 31)
    program = f"import ctypes\nprint(ctypes.CDLL(None).shmget({key}, 4096, 0o1666))"
    attack(program)
    assert str(key) not in Path("/proc/sysvipc/shm").read_text()
    segment = int(control(program, tmp_path).stdout)
    assert str(key) in Path("/proc/sysvipc/shm").read_text()
    subprocess.run(["ipcrm", "-m", str(segment)], check=True)


def test_run_program_is_not_root_and_cannot_become_it(tmp_path):
    needs("it runs as root")
    program = "import os\nos.setuid(0)\nprint(os.getuid())"
    assert attack(program).stdout == ""
    assert (control(program, tmp_path).stdout == "0\n") == ROOT
    assert "CapEff:\t0000000000000000" in attack("print(open('/proc/self/status').read())").stdout


# 4. The result is data, and only from the folder


@pytest.mark.parametrize(
    "trick",
    [
        "os.symlink({!r}, 'result.json')",
        "os.mkdir('result.json')",
        "os.mkfifo('result.json')",
        "sys.exit(0)",
        "os._exit(0)",
    ],
)
def test_run_program_takes_no_result_from(trick, outside):
    secret = outside / "secret.json"
    secret.write_text("[1]")
    secret.chmod(0o666)
    begin = time.monotonic()
    run = attack(f"import os, sys\n{trick.format(str(secret))}", expect_result=True)
    assert (run.status, run.result) == ("no_result", None)
    assert time.monotonic() - begin < 5
    program = f"import os, sys\n{trick.format(str(secret))}"
    assert control(program, outside).returncode == 0  # which many an evaluator takes for success
    if "symlink" in trick:
        assert (outside / "result.json").read_text() == "[1]"
    if "mkfifo" in trick:
        with pytest.raises(subprocess.TimeoutExpired):
            control("open('result.json').read()", outside, seconds=0.5)


SWAP = """
    import os
    here = os.getcwd()
    try:
        os.rename(here, here + "-gone")
    except OSError:
        os.rename("program.py", "elsewhere")
    for name in ("keep", os.path.basename(here)):
        try:
            os.symlink({target!r}, os.path.join(os.path.dirname(here), name))
        except OSError:
            pass
    os.symlink({target!r}, "link")
"""


def test_run_program_cleans_up_without_following_links(outside, temporary):
    (outside / "sentinel").write_text("x")
    attack(SWAP.format(target=str(outside)))
    assert (outside / "sentinel").exists()
    assert [path for path in temporary.rglob("*") if not path.is_symlink()] == []
    (outside / "victim").mkdir()
    control(SWAP.format(target=str(outside)), outside / "victim")
    assert (outside / "victim").is_symlink()
    assert (outside / "victim-gone").is_dir()


def test_run_program_removes_folders_that_resist(tmp_path, temporary):
    deep = "import os\nfor _ in range(1100):\n    os.mkdir('d')\n    os.chdir('d')\n"
    closed = (
        "import os\nos.makedirs('a/b/c')\nopen('a/b/c/f', 'w')\nfor d in ('a/b/c', 'a/b', 'a', '.'): os.chmod(d, 0)"
    )
    many = "for i in range(1000): open(str(i), 'w').close()"
    for program in (deep, closed, many):
        assert attack(program).status == "ok"
    assert list(temporary.iterdir()) == []
    control(deep, tmp_path)
    with pytest.raises((RecursionError, OSError)):
        shutil.rmtree(tmp_path / "d")
    subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True)


def test_run_program_leaves_our_verifier_untouched():
    case = CASES[24]
    program = case["input"]["program"] + "\nconstruct_packing = run_packing\n"
    assert circles.run(program, run_program, timeout_s=case["input"]["timeout_s"])["status"] != "ok"
    assert attack(case["input"]["program"], expect_result=True).status == "no_result"  # whatever it prints at its exit
    control = f"import numpy\n{case['input']['program']}\nprint(numpy.isfinite(numpy.nan))"
    assert "True" in subprocess.run([sys.executable, "-c", control], capture_output=True, text=True, check=True).stdout


# 5. Statuses, streams, the surroundings of a run


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("print(1)", "ok"),
        ("def f(:", "syntax_error"),
        ("if 1:\nprint(1)", "syntax_error"),
        ("x = '\0'", "syntax_error"),
        ("x = '\ud800'", "syntax_error"),
        ("(" * 5000, "syntax_error"),
        ("raise SyntaxError('no')", "runtime_error"),
        ("eval('(')", "runtime_error"),
        ("import sys; sys.exit('SandboxError: bwrap: failed')", "runtime_error"),
        ("import sys; sys.exit(1)", "runtime_error"),
        ("import os; os.abort()", "runtime_error"),
        ("def f(): f()\nf()", "runtime_error"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\x00')", "ok"),
        ("", "ok"),
    ],
)
def test_run_program_names_what_happened(program, status):
    assert run_program(program, timeout_s=5, memory_mb=512).status == status


def test_run_program_calls_its_own_failure_by_name():
    with pytest.raises(RuntimeError, match="the sandbox failed"):
        common.status_of(1, 0.0, 5.0, "bwrap: no space left", True)


def test_run_program_stdin_is_empty_and_not_ours():
    case = CASES[22]
    run = run_program(case["input"]["program"], timeout_s=case["input"]["timeout_s"], memory_mb=512)
    assert run.status == case["expected"]["verdict"]
    assert case["expected"]["stderr_contains"] in run.stderr
    assert run.wall_s < case["expected"]["max_wall_s"]
    assert attack("print(input() + input())", stdin="grün\n→\n").stdout == "grün→\n"


def test_run_program_gives_a_small_fixed_environment():
    case = CASES[30]
    run = run_program(case["input"]["program"], timeout_s=case["input"]["timeout_s"], memory_mb=512)
    assert all(part in run.stdout for part in case["expected"]["stdout_contains_all"])
    assert run.stdout.splitlines()[1] in map(str, case["expected"]["env_MPLBACKEND_any_of"])
    same = "os.getcwd() == os.environ['HOME'] == tempfile.gettempdir()"
    program = f"import os, tempfile\nprint(os.listdir(), hash('a'), {same})"
    first, second = attack(program).stdout, attack(program).stdout
    assert first == second
    assert first.startswith("['program.py']")
    assert first.endswith("True\n")


def test_run_program_says_the_same_words_each_time():
    first, second = (attack("1 / 0").stderr for _ in range(2))
    assert first == second
    assert f'File "{common.WORK}/program.py", line 1' in first


@pytest.mark.skipif(len(common.CORES) < 2, reason="needs two cores")
def test_run_program_does_not_inherit_the_engine_s_pinning(tmp_path):
    program = "import os\nprint(len(os.sched_getaffinity(0)))"
    seen = {}

    def pinned():
        os.sched_setaffinity(0, {common.CORES[0]})  # of this thread alone
        seen["sandbox"], seen["control"] = attack(program).stdout, control(program, tmp_path).stdout

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert seen == {"sandbox": f"{len(common.CORES)}\n", "control": "1\n"}


def test_run_program_works_where_posix_parts_are_missing():
    case = CASES[28]
    program = f"""
        import os, signal
        del signal.SIGALRM, signal.setitimer, signal.alarm, os.killpg, os.setsid
        import common
        run = common.run_program({case["input"]["program"]!r}, timeout_s=5, memory_mb=512)
        print(run.status, run.stdout)
    """
    run = control(program, Path(common.__file__).parent)
    assert run.stdout.split() == [case["expected"]["verdict"], case["expected"]["stdout_contains"]], run.stderr


def test_parallel_keeps_order_and_limits_running_work():
    case = CASES[32]
    timeout_s = case["input"]["timeout_s"]
    begin = time.monotonic()
    runs = common.parallel(
        lambda p: run_program(p, timeout_s=timeout_s, memory_mb=512), enumerate(case["input"]["programs"])
    )
    assert [run.status for run in runs.values()] == case["expected"]["results_in_order"]
    assert time.monotonic() - begin < case["expected"]["max_wall_s"] * max(1, 2 / len(common.CORES))


def test_parallel_starts_while_items_are_still_coming():
    first_done = threading.Event()

    def items():
        yield 1, "a"
        assert first_done.wait(10)
        yield 0, "b"

    def work(item):
        if item == "a":
            first_done.set()
        return item

    assert list(common.parallel(work, items()).items()) == [(0, "b"), (1, "a")]


def test_run_program_never_runs_more_than_one_a_core():
    program = "import time\nbegin = time.time()\ntime.sleep(0.2)\nprint(begin, time.time())"
    threads, spans = [], []
    for _ in range(3 * len(common.CORES)):
        threads.append(
            threading.Thread(target=lambda: spans.append([float(t) for t in attack(program).stdout.split()]))
        )
        threads[-1].start()
    for thread in threads:
        thread.join()
    at_once = [sum(a <= begin < b for a, b in spans) for begin, _ in spans]
    assert len(spans) == len(threads)
    assert max(at_once) <= len(common.CORES)


def boxes():
    return [
        common.Box(n, n != "process group", d, d) for n in ("bwrap", "unshare", "process group") for d in (True, False)
    ]


@pytest.mark.parametrize("box", boxes(), ids=lambda box: f"{box.name}-{'dropped' if box.drop else 'kept'}")
def test_run_in_every_way_of_isolation_ends_the_whole_tree(box, marker):
    """The fallbacks too, wherever they work; a daemon here keeps its environment, as the last one finds it by that."""
    limits = {"timeout_s": 1, "memory_mb": 512, "stdin": "", "expect_result": False}
    try:
        works = common.run_in(box, "print('works')", **limits).stdout == "works\n"
    except (OSError, RuntimeError):
        works = False
    if box.drop and not ROOT:
        works = False
    if box == common.find_box():
        assert works
    if works:
        run = common.run_in(
            box, textwrap.dedent(DAEMON.format(marker).replace("{}", "os.environ")) + "time.sleep(60)", **limits
        )
        assert run.status == "timeout"
        assert not alive(marker)


def test_sandbox_says_what_it_is_and_what_it_leaves_open():
    found = common.sandbox()
    assert found["name"] in ("bwrap", "unshare", "process group")
    assert all(isinstance(gap, str) for gap in found["not_covered"])
    assert any("its user may read" in gap for gap in found["not_covered"])
