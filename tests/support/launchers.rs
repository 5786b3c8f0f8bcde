//! Launchers of processes for tests: MPICH from PyPI, and a script that sets the variables of torchrun.

use super::{Fallible, environment};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The PyPI package of MPICH, with `mpiexec`.
const MPICH: &str = "mpich==5.0.2";

/// The text of a script that starts processes as torchrun does, `torchrun --nproc-per-node N --no-python PROGRAM …`,
/// and sets the same variables. It keeps the `MASTER_PORT` of its environment, and fails if one of the processes fails.
const TORCHRUN: &str = r#"#!/bin/bash
while true; do
    case "$1" in
    --nproc-per-node) count=$2; shift 2 ;;
    --no-python) shift ;;
    *) break ;;
    esac
done
export WORLD_SIZE=$count LOCAL_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29500}
export TORCHELASTIC_USE_AGENT_STORE=True
for ((rank = count - 1; rank >= 0; rank--)); do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    processes+=($!)
done
status=0
for process in "${processes[@]}"; do wait "$process" || status=$?; done
exit $status
"#;

/// Returns the path of MPICH's `mpiexec`; installs it if it is missing.
pub fn mpiexec() -> Fallible<PathBuf> {
    let python = environment::ensure_environment("mpich", &[MPICH])?;
    Ok(python.parent().ok_or("no folder")?.join("mpiexec"))
}

/// Writes the script that takes the place of torchrun into a folder. Returns its path.
pub fn write_torchrun(folder: &Path) -> Fallible<PathBuf> {
    write_program(folder, "torchrun", TORCHRUN)
}

/// Writes an executable script into a folder. Returns its path.
pub fn write_program(folder: &Path, name: &str, script: &str) -> Fallible<PathBuf> {
    let program = folder.join(name);
    fs::write(&program, script)?;
    fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    Ok(program)
}
