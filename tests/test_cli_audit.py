"""``python -m simdp audit``: the table, the document, the exit status, and what it refuses."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from for_each import for_each

from simdp.cli import run_command_line
from simdp.cli.audit import command_line
from simdp.cli.completion import CAUSES


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def command(*arguments):
        status = run_command_line(["audit", *map(str, arguments)])
        found = capsys.readouterr()
        return status, found.out, found.err

    return command


@for_each(
    ("given", "said"),
    [
        (("--batch-arg", "--b {per_rank}"), "--batch-arg: is for scripts, but seed_mlp is a"),
        (("--save-arg", "--save {checkpoint}"), "--save-arg: is for scripts, but seed_mlp is a"),
        (("--resume-arg", "--r {checkpoint}"), "--resume-arg: is for scripts, but seed_mlp is a"),
        (("--at-step", 3), "--at-step: is for scripts, but seed_mlp is a scenario; leave it out."),
        (("--ranks", "1,x"), "--ranks 1,x: is no list of numbers of ranks; write for example 1,2"),
        (("--ranks", "4:2"), "--ranks 4:2: is no list of numbers of ranks; write for example 1,2"),
        (("--allow", "roundin"), "--allow: unknown cause 'roundin'. Did you mean "),
    ],
)
def test_what_is_not_for_a_scenario_is_refused_in_one_line(command, given, said):
    status, out, err = command(*given, "seed_mlp")
    assert (status, out) == (2, "")
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_an_unknown_cause_gets_a_hint(command):
    assert command("--allow", "roundin", "seed_mlp")[2].startswith(
        "--allow: unknown cause 'roundin'. Did you mean 'rounding'? Known: collectives_differ, "
    )


def test_options_stand_on_either_side_of_a_scenario(command, tmp_path):
    page = tmp_path / "page.html"
    for given in (("seed_mlp", "--html", str(page)), ("--html", str(page), "seed_mlp")):
        assert command(*given)[0] == 3
        page.unlink()


@pytest.fixture
def audited_script(command, monkeypatch):
    """Audit a script without running it; return what it was given, and the errors."""

    def audited_script(*arguments, source=""):
        Path("train.py").write_text(source)
        calls = []

        def record(script, arguments, module, given, of_script):
            calls.append(
                (script, arguments, {name for name, value in given._asdict().items() if value})
            )
            return SimpleNamespace(same=True, to_json=lambda: "{}")

        monkeypatch.setattr("simdp.cli.audit._script", record)
        monkeypatch.setattr("simdp.reports.page.write", lambda found, stream, command: None)
        status, _, err = command("--json", *arguments)
        assert status == 0, err
        return calls[0], err

    return audited_script


def test_options_of_audit_behind_a_script_that_does_not_take_them_are_audits(audited_script):
    behind = ("--ranks", "1,2", "--html", "a.html", "--save-arg", "--save {checkpoint}")
    call, err = audited_script("train.py", "3", *behind, "-", "--exact")
    assert call == ("train.py", ["3", "-"], {"ranks", "exact"})
    assert Path("a.html").exists()
    assert err == (
        "--ranks, --html, --save-arg, --exact: read as audit's; if train.py takes them, write -- "
        "before the script\n"
    )
    Path("package").mkdir()
    Path("package/train.py").touch()
    call, err = audited_script("-m", "package.train", "--ranks=1,2")
    assert call == ("package.train", [], {"ranks"})
    assert err.startswith("--ranks: read as audit's; if package.train takes it, write -- ")


@for_each(
    ("arguments", "source", "note"),
    [
        (
            ["--epochs", "3", "--html", "a.html"],
            "",
            "--html went to train.py; write it before the script\n",
        ),
        (
            ["--ranks", "1", "--html=a.html"],
            "add_argument('--ranks')",
            "--html went to train.py; write it before the script\n",
        ),
        (["--ranks", "1"], "add_argument('--ranks')", ""),
        (["--max-steps", "1"], "class Settings:\n    max_steps: int = 3", ""),
        (["--", "--html", "a.html"], "", ""),
        (["-1", "--exact"], "", "--exact went to train.py; write it before the script\n"),
        (["-m", "x"], "", ""),
        (["--help"], "", ""),
    ],
)
def test_other_options_behind_a_script_are_all_the_scripts(audited_script, arguments, source, note):
    given = ("train.py", arguments, set())
    assert audited_script("train.py", *arguments, source=source) == (given, note)
    assert not Path("a.html").exists()


def test_options_behind_a_separator_are_the_scripts(audited_script):
    call, err = audited_script("--ranks", "1,2", "--", "train.py", "--html", "a.html")
    assert (call, err) == (("train.py", ["--html", "a.html"], {"ranks"}), "")


def test_arguments_behind_a_scenario_are_refused(command):
    status, _, err = command("seed_mlp", "3", "4")
    assert status == 2
    assert err == (
        "3 4: arguments are for scripts, but seed_mlp is a scenario; keys are set by --set.\n"
    )


def test_keys_are_set_in_scenarios_only(command):
    status, _, err = command("--set", "seed=1", "train.py")
    assert status == 2
    assert err == ("--set seed=1: is for scenarios; give a script its own arguments behind it.\n")


def test_causes_are_completed():
    assert CAUSES("resume") == ["resume_optimizer_state", "resume_sampler_position"]


JOB = """
cluster: {world_size: 4, device: t4-16gb, link: pcie3-x16, topology: ring}
workload:
  model: {kind: mlp, widths: [6, 8, 3]}
  dataset: {kind: regression, num_samples: 60}
  global_batch: 10
  dtype: float64
  steps: 3
strategy: {kind: ddp, bucket_cap: 1 MiB}
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    return "job.yaml"


def test_a_wrong_scenario_has_a_table_and_exit_status_3(command, job):
    status, out, err = command(job)
    assert (status, err) == (3, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "audit of job: 1 and 4 ranks, 3 steps of 10 samples"
    assert any(line.startswith("gradients   differ       first at step 1") for line in lines)
    cause = next(line for line in lines if line.startswith("  cause"))
    assert "loss_mean_of_rank_means: the loss is a mean" in cause
    assert cause.endswith("job.yaml:9")
    assert "  proof     with strategy.weight_by_shard: true, 1 and 4 ranks agree to 1e-15" in lines
    assert lines[-1] == "wrong: loss_mean_of_rank_means"


def test_what_is_allowed_or_repaired_has_exit_status_0(command, job):
    status, out, _ = command("--allow", "loss_mean_of_rank_means", job)
    assert status == 0
    assert "nothing is wrong; it differs by loss_mean_of_rank_means" in out
    status, out, _ = command("--set", "strategy.weight_by_shard=true", "--exact", job)
    assert status == 0
    assert out.splitlines()[-1] == "nothing is wrong"


def test_the_page_is_written_where_it_is_asked_for(command, job, tmp_path):
    file = tmp_path / "new" / "audit.html"
    given = ["--allow", "loss_mean_of_rank_means", "--exact", "--set", "seed=2", "--ranks", "1,5"]
    status, out, _ = command(*given, "--html", file, job)
    assert status == 0
    assert out.startswith("audit of job: 1 and 5 ranks")
    text = file.read_text()
    assert "<h1>job: is its training data-parallel?</h1>" in text
    repeated = "--ranks 1,5 --exact --allow loss_mean_of_rank_means --set seed=2 job.yaml"
    assert f"python -m simdp audit {repeated}" in text
    assert [path.name for path in file.parent.iterdir()] == ["audit.html"]


def test_the_command_of_a_page_repeats_the_audit_of_a_script():
    options = {
        **{"ranks": "4:2", "exact": False, "allow": ["rounding"], "max_steps": 6},
        **{"--batch-arg": "--b {per_rank}", "--save-arg": None, "--at-step": 3},
    }
    assert command_line("train", ["--lr", "1"], True, options, []) == [
        *("audit", "--ranks", "4:2", "--allow", "rounding", "--max-steps", "6"),
        *("--batch-arg", "--b {per_rank}", "--at-step", "3", "--module", "train", "--lr", "1"),
    ]


def test_json_is_one_document(command, job):
    status, out, err = command("--json", "--ranks", "2,5", "--max-steps", 2, job)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert (found["same"], found["ranks"], found["steps"]) == (True, [1, 2, 5], 2)
    status, out, _ = command("--json", job)
    (finding,) = json.loads(out)["findings"]
    assert status == 3
    assert finding["cause"] == "loss_mean_of_rank_means"
    assert set(finding) >= {"legitimate", "file", "line", "step", "tensor", "size", "proof"}


def test_a_table_is_as_wide_as_the_terminal_up_to_100_columns(command, job, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = command(job)[1]
    assert 80 < max(map(len, out.splitlines())) <= 100


def test_a_scenario_without_numbers_is_refused_in_one_line(command):
    status, out, err = command("straggler")
    assert (status, out) == (2, "")
    assert err.endswith(
        "straggler.yaml: numerics: false: without numbers there is nothing to compare; "
        "--set numerics=true computes them, if the model is small enough.\n"
    )
    assert "has times only; use a model with layers" in command("profile_step")[2]
