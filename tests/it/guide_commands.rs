//! Every command of the README and of the guides runs. A script takes the place of `cargo`: it runs the programs that
//! are already built, and checks that a test program which a command names exists.

use crate::support::Fallible;
use crate::support::cluster::free_port;
use crate::support::environment;
use crate::support::folder::Folder;
use crate::support::launchers;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Commands that the test does not run, because they need other machines or packages: the start of each command, and
/// the test or script that runs a similar command.
const TESTED_ELSEWHERE: &[(&str, &str)] = &[
    ("scripts/gpu-suite pack", "tests/it/gpu_suite.rs"),
    ("FOLDER/gpu-suite run", "tests/it/gpu_suite.rs"),
    ("cargo run --features store-s3", "tests/it/stores.rs"),
    ("cargo test --workspace", ".ci/run"),
    ("anabranch-worker $cluster", "tests/deadlines/ps_replicas.rs"),
    ("mpirun -n 4", "tests/it/examples.rs"),
    ("torchrun --no-python --nproc-per-node 4", "tests/it/examples.rs"),
];

/// Ports in the documents, which the test replaces by free ports.
const PORTS: [&str; 3] = ["2222", "2223", "2224"];

/// Number of seconds after which a block of commands is killed.
const DEADLINE: &str = "300";

/// The script that takes the place of `cargo`; `$ROOT` is the root of the repository.
const CARGO: &str = r#"#!/bin/bash
set -e
case "$1" in
install)
    grep -q '^name = "anabranch"$' "$ROOT/Cargo.toml"
    for program in anabranch anabranch-worker anabranch-master; do command -v $program; done ;;
test)
    while [ "$1" != --test ]; do shift; done
    [ -e "$ROOT/tests/$2.rs" ] || [ -e "$ROOT/tests/$2/main.rs" ]
    [ -z "$3" ] || [ -e "$ROOT/tests/$2/$3.rs" ] ;;
run)
    shift
    while [ "$1" = --release ]; do shift; done
    case "$1" in
    --) shift; exec anabranch "$@" ;;
    --example) [ -e "$ROOT/examples/$2.rs" ] || [ -e "$ROOT/examples/$2/main.rs" ] ;;
    *) echo "cargo run $*: unknown to the test" >&2; exit 1 ;;
    esac ;;
*) echo "cargo $*: unknown to the test" >&2; exit 1 ;;
esac
"#;

/// Shell code that waits until the servers of a block listen. The servers end when the script ends.
const AWAIT_SERVERS: &str = r#"
for port in $PORTS; do
    for attempt in $(seq 200); do
        (exec 3<>"/dev/tcp/localhost/$port") 2>/dev/null && break
        sleep 0.1
    done
    exec 3<>"/dev/tcp/localhost/$port"
done
"#;

/// Returns the paths of the README and the guides.
fn documents(root: &Path) -> Fallible<Vec<PathBuf>> {
    let mut found = vec![root.join("README.md")];
    for entry in fs::read_dir(root.join("docs/guide"))? {
        found.push(entry?.path());
    }
    found.sort();
    Ok(found)
}

/// Returns the content of each code block of shell commands in a document.
fn shell_blocks(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n```sh\n").skip(1).filter_map(|rest| rest.split("\n```").next())
}

/// Makes a folder with the programs that the commands run: this build's, launchers, and scripts for `cargo` and `python`.
fn programs(root: &Path) -> Fallible<Folder> {
    let folder = Folder::new("guide-programs")?;
    for (name, program) in [
        ("anabranch", env!("CARGO_BIN_EXE_anabranch")),
        ("anabranch-worker", env!("CARGO_BIN_EXE_anabranch-worker")),
        ("anabranch-master", env!("CARGO_BIN_EXE_anabranch-master")),
    ] {
        symlink(program, folder.path().join(name))?;
    }
    let mpirun = format!("#!/bin/sh\nexec '{}' \"$@\"\n", launchers::mpiexec()?.display());
    let cargo = CARGO.replace("$ROOT", &root.display().to_string());
    let python = "#!/bin/sh\nexec python3 \"$@\"\n";
    for (name, script) in [("mpirun", &*mpirun), ("cargo", &cargo), ("python", python)] {
        launchers::write_program(folder.path(), name, script)?;
    }
    launchers::write_torchrun(folder.path())?;
    Ok(folder)
}

/// Runs a block of commands in a new folder, with free ports.
fn run(block: &str, programs: &Folder) -> Fallible<String> {
    let folder = Folder::new("guide")?;
    fs::write(folder.path().join("train.py"), "print('trained')\n")?;
    let mut script: String = block
        .lines()
        .filter(|line| !TESTED_ELSEWHERE.iter().any(|(start, _)| line.starts_with(start)))
        .fold("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n".to_owned(), |script, line| {
            script + line + "\n"
        });
    let mut ports = Vec::new();
    if block.lines().any(|line| line.ends_with('&')) {
        for port in PORTS {
            let free = free_port()?.port().to_string();
            script = script.replace(port, &free);
            ports.push(free);
        }
        script.push_str(AWAIT_SERVERS);
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("timeout");
    bash.args([DEADLINE, "bash", "-c", &script]).current_dir(folder.path()).env("PORTS", ports.join(" "));
    bash.env("ANABRANCH_PORT", free_port()?.port().to_string());
    environment::run(bash.env("PATH", format!("{}:{path}", programs.path().display())))
}

#[test]
fn every_command_of_the_readme_and_the_guides_runs() -> Fallible {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (_, test) in TESTED_ELSEWHERE {
        assert!(root.join(test).exists(), "{test} does not exist");
    }
    let programs = programs(root)?;
    let mut count = 0;
    for document in documents(root)? {
        for block in shell_blocks(&fs::read_to_string(&document)?) {
            run(block, &programs).map_err(|error| format!("{}:\n{block}\n{error}", document.display()))?;
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} blocks of commands");
    Ok(())
}
