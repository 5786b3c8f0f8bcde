//! `anabranch run`: runs a program that starts TensorFlow's servers itself, with our servers in their place.

use super::launch::{self, LaunchFlags};
use client::process_group::LaunchedTask;
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use tokio::signal::unix::{SignalKind, signal};

/// The Python module that replaces TensorFlow's servers by ours; its folder is first in the program's `PYTHONPATH`.
const SITE: &str = include_str!("sitecustomize.py");

#[derive(Debug, clap::Args)]
pub(crate) struct RunFlags {
    /// A flag for every server that the program starts, such as `--server-flag=--threads=4`; may be repeated
    #[arg(long = "server-flag", value_name = "FLAG", allow_hyphen_values = true)]
    server_flags: Vec<String>,

    /// Leave TF_CONFIG as it is. Otherwise, if a launcher (torchrun, mpirun, srun) has started this process and TF_CONFIG
    /// is not set, the program gets a TF_CONFIG in which each process of the launcher is a task of the job `worker`
    #[arg(long)]
    no_tf_config: bool,

    #[command(flatten)]
    launch: LaunchFlags,

    /// The program and its arguments, after `--`: `anabranch run -- python train.py --job_name=ps --task_index=0`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program to its end, and returns its exit code.
pub(crate) fn run(flags: &RunFlags) -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    let launched = launched_task(flags)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let status = runtime.block_on(supervise(flags, launched.as_ref()))?;
    let code = status.code().or(status.signal().map(|number| 128 + number)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Returns the task of this process among those of a launcher, if the program is to be given that task.
fn launched_task(flags: &RunFlags) -> Result<Option<LaunchedTask>, Box<dyn Error + Send + Sync>> {
    let is_set = std::env::var_os("TF_CONFIG").is_some_and(|config| !config.is_empty());
    if flags.no_tf_config || is_set {
        return Ok(None);
    }
    launch::find()?.map(|environment| flags.launch.meet(&environment)).transpose()
}

/// Returns the `TF_CONFIG` of a task.
fn tf_config(launched: &LaunchedTask) -> String {
    let LaunchedTask { cluster, task, .. } = launched;
    let addresses: Vec<&str> = cluster.tasks().map(|(_, address)| address).collect();
    let cluster = BTreeMap::from([(&*task.job, addresses)]);
    serde_json::json!({"cluster": cluster, "task": {"type": &*task.job, "index": task.task}}).to_string()
}

async fn supervise(
    flags: &RunFlags,
    launched: Option<&LaunchedTask>,
) -> Result<ExitStatus, Box<dyn Error + Send + Sync>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let site = SiteFolder::new()?;
    let mut program = start(flags, launched, &site.folder)?;
    let id = program.id();
    let mut ended = tokio::task::spawn_blocking(move || program.wait());
    loop {
        tokio::select! {
            status = &mut ended => return Ok(status??),
            // `anabranch run` continues until the program has stopped its server and exited.
            _ = terminate.recv() => terminate_process(id),
            // Ctrl-C is ignored, because the terminal also sends it to the program.
            _ = interrupt.recv() => {}
        }
    }
}

fn start(
    flags: &RunFlags,
    launched: Option<&LaunchedTask>,
    site: &Path,
) -> Result<Child, Box<dyn Error + Send + Sync>> {
    let mut path = site.as_os_str().to_owned();
    if let Some(rest) = std::env::var_os("PYTHONPATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    let (program, arguments) = flags.program.split_first().ok_or("no program to run")?;
    let mut command = Command::new(program);
    if let Some(launched) = launched {
        command.env("TF_CONFIG", tf_config(launched));
    }
    command
        .args(arguments)
        .env("PYTHONPATH", path)
        .env("ANABRANCH_RUN_SERVER", std::env::current_exe()?)
        .env("ANABRANCH_RUN_FLAGS", serde_json::to_string(&flags.server_flags)?)
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", program.display()).into())
}

fn terminate_process(id: u32) {
    let told = Command::new("kill").arg(id.to_string()).status();
    if !told.is_ok_and(|status| status.success()) {
        eprintln!("anabranch run: the program (process {id}) could not be stopped");
    }
}

/// The temporary folder that is first in the program's `PYTHONPATH`; it is removed on drop.
struct SiteFolder {
    folder: PathBuf,
}

impl SiteFolder {
    /// Creates a folder that only this user can write to, because its files are executed.
    fn new() -> std::io::Result<SiteFolder> {
        // An earlier process with the same id may have left its folder behind.
        for attempt in 0..MAX_LEFTOVER_FOLDERS {
            let name = format!("anabranch-run-{}-{attempt}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            match DirBuilder::new().mode(0o700).create(&folder) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                made => {
                    made?;
                    let site = SiteFolder { folder };
                    fs::write(site.folder.join("sitecustomize.py"), SITE)?;
                    return Ok(site);
                }
            }
        }
        let folder = std::env::temp_dir();
        Err(std::io::Error::new(
            ErrorKind::AlreadyExists,
            format!("{} has too many folders of earlier runs", folder.display()),
        ))
    }
}

/// Maximum number of existing folders that are skipped: those that earlier processes with this process id have left
/// behind.
const MAX_LEFTOVER_FOLDERS: u32 = 1000;

impl Drop for SiteFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("anabranch run: {} could not be removed: {error}", self.folder.display());
        }
    }
}
