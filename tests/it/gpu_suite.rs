//! `scripts/gpu-suite` runs its parts, reports their results, and ends a part that hangs. Shell scripts take the place
//! of the programs that need a GPU.

use crate::support::Fallible;
use crate::support::folder::Folder;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

/// The lock that is held while a program is written and while a process is started: a child process would inherit a
/// file open for writing, and executing that file would then fail.
static WRITES_OR_STARTS: Mutex<()> = Mutex::new(());

/// Returns a folder like one that `gpu-suite pack` creates, in which the part "clicks" fails and the part "kernels"
/// hangs.
fn packed() -> Fallible<Folder> {
    let _writes = WRITES_OR_STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("gpu-suite")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-suite");
    fs::copy(script, folder.path().join("gpu-suite"))?;
    let tests = "case \"$*\" in\n\
        *clicks*) echo a test fails >&2; exit 101 ;;\n\
        *kernels::every*) echo \"$ANABRANCH_GPU_SHARE ${ANABRANCH_GPU_UNPOISONED:-poisoned}\" ;;\n\
        *kernels*) tail -f /dev/null ;;\n\
        *) echo \"tests: $*; in $ANABRANCH_PROGRAMS\" ;;\n\
        esac";
    let sanitizer = "echo \"sanitizer: $1 $2\"\nwhile [ \"${1#*/}\" = \"$1\" ]; do shift; done\nexec \"$@\"";
    let programs = [
        ("anabranch", "echo command: $*"),
        ("gpu-tests", tests),
        ("gpu-bench", "echo bench: $*"),
        ("tool", sanitizer),
    ];
    for (name, text) in programs {
        program(&folder.path().join(name), text)?;
    }
    Ok(folder)
}

/// Writes an executable shell script.
fn program(path: &PathBuf, text: &str) -> Fallible {
    fs::write(path, format!("#!/bin/sh\n{text}\n"))?;
    Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
}

/// Runs `gpu-suite` without PyTorch, with a time limit of `seconds` for each part.
fn run(folder: &Folder, arguments: &[&str], seconds: &str) -> Fallible<Output> {
    let mut suite = Command::new(folder.path().join("gpu-suite"));
    suite.args(arguments).env("PYTHON", "false").env("PART_SECONDS", seconds).env_remove("OUT");
    suite.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = {
        let _starts = WRITES_OR_STARTS.lock().unwrap_or_else(PoisonError::into_inner);
        suite.spawn()?
    };
    Ok(started.wait_with_output()?)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn each_part_runs_its_commands_and_is_in_the_summary() -> Fallible {
    let folder = packed()?;
    let output = run(&folder, &["run", "doctor", "programs", "bench-mlp", "bench-launched-mlp"], "60")?;
    let summary = text(&output);
    assert!(output.status.success(), "{summary}");
    let programs = format!("in {}", folder.path().display());
    assert!(
        summary.contains("command: doctor\n")
            && summary.contains("bench: mlp\n")
            && summary.contains("bench: mlp --no-cuda-graphs\n")
            && summary.contains(&programs),
        "{summary}"
    );
    for part in ["doctor", "programs", "bench-mlp", "bench-launched-mlp"] {
        assert!(
            summary.lines().any(|line| line.starts_with(&format!("{part}: passed, "))),
            "{part}: {summary}"
        );
    }
    assert!(summary.contains("clicks: not run, because it was not requested\n"), "{summary}");
    // The summary must have one line for each part.
    let parts = text(&run(&folder, &["parts"], "60")?);
    for part in parts.lines() {
        assert_eq!(
            summary.lines().filter(|line| line.starts_with(&format!("{part}: "))).count(),
            1,
            "{part}: {summary}"
        );
    }
    assert!(parts.lines().count() > 20, "{parts}");
    Ok(())
}

#[test]
fn failed_or_timed_out_part_is_reported_and_the_others_run() -> Fallible {
    let folder = packed()?;
    let output = run(&folder, &["run", "kernels", "clicks", "digits"], "1")?;
    let summary = text(&output);
    assert_eq!(output.status.code(), Some(1), "{summary}");
    assert!(summary.contains("kernels: FAILED, because it had not ended after 1 s\n"), "{summary}");
    assert!(summary.contains("clicks: FAILED with 101, "), "{summary}");
    assert!(summary.contains("digits: passed, "), "{summary}");
    Ok(())
}

#[test]
fn unknown_part_is_refused_before_any_runs() -> Fallible {
    let output = run(&packed()?, &["run", "doctor", "doctors"], "60")?;
    assert_eq!(output.status.code(), Some(2));
    assert_eq!((text(&output).as_str(), &*output.stderr), ("", b"there is no part doctors\n".as_slice()));
    Ok(())
}

#[test]
fn each_part_writes_its_own_output_file() -> Fallible {
    let folder = packed()?;
    let out = folder.path().join("out");
    let mut suite = Command::new(folder.path().join("gpu-suite"));
    let output = suite.args(["run", "clicks", "doctor"]).env("PYTHON", "false").env("OUT", &out).output()?;
    assert!(!text(&output).contains("a test fails"), "{}", text(&output));
    assert_eq!(fs::read_to_string(out.join("clicks.log"))?, "a test fails\n");
    assert_eq!(fs::read_to_string(out.join("doctor.log"))?, "command: doctor\n");
    Ok(())
}

/// Runs sanitizer parts, each of which checks a share of the kernel table; the part for uninitialised memory runs
/// without poisoning.
#[test]
fn kernels_run_under_the_sanitizer_if_installed() -> Fallible {
    let folder = packed()?;
    let parts = ["run", "--sanitize", "memcheck-2", "initcheck-4"];
    let summary = text(&run(&folder, &parts, "60")?);
    assert!(summary.contains("memcheck-2: not run, because a requirement is missing\n"), "{summary}");
    fs::rename(folder.path().join("tool"), folder.path().join("compute-sanitizer"))?;
    let paths = [folder.path().to_owned(), "/usr/bin".into(), "/bin".into()];
    let mut suite = Command::new(folder.path().join("gpu-suite"));
    let output = suite.args(parts).env("PATH", std::env::join_paths(paths)?).env_remove("OUT").output()?;
    let summary = text(&output);
    assert!(summary.contains("sanitizer: --tool memcheck\n2/4 poisoned\n"), "{summary}");
    assert!(summary.contains("sanitizer: --tool initcheck\n4/4 1\n"), "{summary}");
    assert!(summary.contains("initcheck-4: passed, "), "{summary}");
    Ok(())
}
