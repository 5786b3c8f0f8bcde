//! The environment variables from which a process learns its rank and the address at which all processes meet, as
//! launchers set them.

use super::{JOB, meeting};
use crate::error::Result as ClientResult;
use graph::TaskName;
use proto::Cluster;
use std::fmt;
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;

/// The port at which processes meet if no variable names one.
const DEFAULT_PORT: u16 = 29511;

/// A launcher, and the names of the variables in which it gives a process its rank, the number of processes, and the
/// number of processes on its host.
struct Launcher {
    name: &'static str,
    rank: &'static str,
    size: &'static str,
    /// The variable with the number of processes on the host; `None` for a launcher that names its hosts.
    local_size: Option<&'static str>,
    /// Variables of which the launcher sets at least one in each process that it starts; needed if the rank and the
    /// number of processes are set in other processes too, else empty.
    marks: &'static [&'static str],
}

/// The launchers, in the order in which their variables are looked up: `mpirun` may run within a job of Slurm.
const LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "torchrun",
        rank: "RANK",
        size: "WORLD_SIZE",
        local_size: Some("LOCAL_WORLD_SIZE"),
        marks: &[],
    },
    Launcher {
        name: "Open MPI",
        rank: "OMPI_COMM_WORLD_RANK",
        size: "OMPI_COMM_WORLD_SIZE",
        local_size: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        marks: &[],
    },
    Launcher {
        name: "MPICH",
        rank: "PMI_RANK",
        size: "PMI_SIZE",
        local_size: Some("MPI_LOCALNRANKS"),
        marks: &[],
    },
    // Slurm also sets the rank and the number of tasks for a batch script, which it starts only once.
    Launcher {
        name: "Slurm",
        rank: "SLURM_PROCID",
        size: "SLURM_NTASKS",
        local_size: None,
        marks: &["SLURM_STEP_ID", "SLURM_STEP_NODELIST"],
    },
];

/// A process's rank and meeting address, from the variables of the launcher that started it.
///
/// | launcher | rank and number of processes | host of rank 0, without `MASTER_ADDR` |
/// |---|---|---|
/// | torchrun | `RANK`, `WORLD_SIZE` | 127.0.0.1 if all processes are on one host |
/// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | 127.0.0.1 if all processes are on one host |
/// | MPICH | `PMI_RANK`, `PMI_SIZE` | 127.0.0.1 if all processes are on one host |
/// | Slurm | `SLURM_PROCID`, `SLURM_NTASKS` | first of `SLURM_STEP_NODELIST` or `SLURM_JOB_NODELIST`, or `SLURM_LAUNCH_NODE_IPADDR` |
///
/// The port is `ANABRANCH_PORT`, else `MASTER_PORT` (the next one if torchrun itself uses it, as
/// `TORCHELASTIC_USE_AGENT_STORE` shows), else 29511.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    pub rank: usize,
    /// The number of processes that the launcher has started.
    pub size: usize,
    /// The host and port at which rank 0 waits for the other processes.
    pub host: String,
    pub port: u16,
}

/// A process that a launcher has started, as a task of the cluster that all its processes form.
#[derive(Debug)]
pub struct LaunchedTask {
    /// The cluster of one job, `worker`: rank *r* is its task *r*.
    pub cluster: Cluster,
    /// The task of this process.
    pub task: TaskName,
    /// Holds the port of the task: it is bound and does not listen. A server of this process listens at it, or a server
    /// of a child process binds the same port while this socket is open.
    pub socket: TcpSocket,
}

/// A fault in a launcher's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnvironmentError {
    NoLauncher,
    Missing {
        launcher: &'static str,
        variable: &'static str,
    },
    Malformed {
        variable: &'static str,
        value: String,
    },
    /// The rank is not below the number of processes.
    Rank {
        rank: usize,
        size: usize,
    },
    NoAddress {
        launcher: &'static str,
    },
}

impl fmt::Display for EnvironmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnvironmentError::NoLauncher => f.write_str(
                "no launcher has started this process: run it by torchrun, mpirun or srun, or set RANK, WORLD_SIZE, \
                 MASTER_ADDR and MASTER_PORT",
            ),
            EnvironmentError::Missing { launcher, variable } => {
                write!(f, "{variable} is not set, although other variables of {launcher} are")
            }
            EnvironmentError::Malformed { variable, value } => {
                write!(f, "{variable} is '{value}', which is no number in its range")
            }
            EnvironmentError::Rank { rank, size } => {
                write!(f, "the rank is {rank}, but there are {size} processes")
            }
            EnvironmentError::NoAddress { launcher } => write!(
                f,
                "{launcher} does not tell the host of rank 0: set MASTER_ADDR to it for all processes"
            ),
        }
    }
}

impl std::error::Error for EnvironmentError {}

impl Environment {
    /// Reads the variables; `lookup` returns the value of a variable that is set.
    ///
    /// # Errors
    /// For variables that are missing or malformed.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Environment, EnvironmentError> {
        let is_set = |launcher: &&Launcher| {
            lookup(launcher.rank).is_some() || (launcher.marks.is_empty() && lookup(launcher.size).is_some())
        };
        let launcher = LAUNCHERS.iter().find(is_set).ok_or(EnvironmentError::NoLauncher)?;
        Environment::of(launcher, &lookup)
    }

    /// Reads the variables like [`Environment::read`], but returns `None` for a process that no launcher has started. A
    /// batch script of Slurm is such a process unless `srun` starts it, although Slurm sets its number of tasks.
    ///
    /// # Errors
    /// For variables of a launcher that are missing or malformed.
    pub fn find(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Environment>, EnvironmentError> {
        let is_set = |launcher: &&Launcher| {
            let is_marked =
                launcher.marks.is_empty() || launcher.marks.iter().any(|mark| lookup(mark).is_some());
            is_marked && (lookup(launcher.rank).is_some() || lookup(launcher.size).is_some())
        };
        LAUNCHERS.iter().find(is_set).map(|launcher| Environment::of(launcher, &lookup)).transpose()
    }

    /// Waits until all processes of the launcher have registered with rank 0, at most for `patience`. Returns the
    /// cluster that they form, and this process's task and port in it.
    ///
    /// # Errors
    /// `DeadlineExceeded` naming the ranks that have not registered; `InvalidArgument` for processes that disagree in
    /// their number or have the same rank; `Unavailable` if rank 0 cannot listen.
    pub fn meet(&self, patience: Duration) -> ClientResult<LaunchedTask> {
        let (socket, addresses) = meeting::meet(self, super::work::after(Instant::now(), patience))?;
        let mut cluster = Cluster::new();
        for (task, address) in (0..).zip(&addresses) {
            cluster.insert(JOB, task, address)?;
        }
        let task = TaskName::new(JOB, u32::try_from(self.rank).unwrap_or(u32::MAX));
        Ok(LaunchedTask { cluster, task, socket })
    }

    /// Reads the variables of a launcher.
    fn of(
        launcher: &Launcher,
        lookup: &impl Fn(&str) -> Option<String>,
    ) -> Result<Environment, EnvironmentError> {
        let number = |variable| {
            let missing = EnvironmentError::Missing { launcher: launcher.name, variable };
            number(variable, &lookup(variable).ok_or(missing)?)
        };
        let (rank, size) = (number(launcher.rank)?, number(launcher.size)?);
        if rank >= size {
            return Err(EnvironmentError::Rank { rank, size });
        }
        let host = lookup("MASTER_ADDR").filter(|host| !host.is_empty());
        let host = host.or_else(|| launcher.default_host(size, lookup));
        let host = host.ok_or(EnvironmentError::NoAddress { launcher: launcher.name })?;
        Ok(Environment { rank, size, host, port: port(lookup)? })
    }
}

impl Launcher {
    /// Returns the host of rank 0; `None` if the launcher's variables do not determine it.
    fn default_host(&self, size: usize, lookup: &impl Fn(&str) -> Option<String>) -> Option<String> {
        let Some(local_size) = self.local_size else {
            let nodes = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"));
            return nodes.and_then(|list| first_node(&list)).or_else(|| lookup("SLURM_LAUNCH_NODE_IPADDR"));
        };
        let local = lookup(local_size);
        local.is_none_or(|local| local.trim().parse() == Ok(size)).then(|| "127.0.0.1".to_owned())
    }
}

fn number<T: std::str::FromStr>(variable: &'static str, value: &str) -> Result<T, EnvironmentError> {
    value.trim().parse().map_err(|_| EnvironmentError::Malformed { variable, value: value.to_owned() })
}

fn port(lookup: &impl Fn(&str) -> Option<String>) -> Result<u16, EnvironmentError> {
    if let Some(port) = lookup("ANABRANCH_PORT") {
        return number("ANABRANCH_PORT", &port);
    }
    let Some(value) = lookup("MASTER_PORT") else { return Ok(DEFAULT_PORT) };
    let port: u16 = number("MASTER_PORT", &value)?;
    // The port is taken if torchrun's agent itself listens at it.
    let is_taken = lookup("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    let next = port.checked_add(is_taken.into());
    next.ok_or(EnvironmentError::Malformed { variable: "MASTER_PORT", value })
}

/// Returns the first node of one of Slurm's lists of nodes, such as `gpu01` of `gpu[01-03,7],login1`.
fn first_node(list: &str) -> Option<String> {
    let first = match list.split_once('[') {
        Some((prefix, rest)) if !prefix.contains(',') => {
            let (numbers, after) = rest.split_once(']')?;
            let number = numbers.split(['-', ',']).next()?;
            format!("{prefix}{number}{}", after.split(',').next().unwrap_or_default())
        }
        _ => list.split(',').next().unwrap_or_default().to_owned(),
    };
    Some(first).filter(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, EnvironmentError> {
        let all: std::collections::BTreeMap<&str, &str> = variables.iter().copied().collect();
        Environment::read(|name| all.get(name).map(|value| (*value).to_owned()))
    }

    fn find(variables: &[(&str, &str)]) -> Result<Option<Environment>, EnvironmentError> {
        let all: std::collections::BTreeMap<&str, &str> = variables.iter().copied().collect();
        Environment::find(|name| all.get(name).map(|value| (*value).to_owned()))
    }

    fn environment(rank: usize, size: usize, host: &str, port: u16) -> Result<Environment, EnvironmentError> {
        Ok(Environment { rank, size, host: host.to_owned(), port })
    }

    #[test]
    fn torchrun_gives_rank_size_and_address() {
        let rank = [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        let address = [("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")];
        let all = [&rank[..], &address].concat();
        assert_eq!(read(&all), environment(1, 4, "node7", 29500));
        let with_agent = [&all[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(read(&with_agent), environment(1, 4, "node7", 29501));
        let with_port = [&with_agent[..], &[("ANABRANCH_PORT", "7000")]].concat();
        assert_eq!(read(&with_port), environment(1, 4, "node7", 7000));
        assert_eq!(read(&rank), Err(EnvironmentError::NoAddress { launcher: "torchrun" }));
    }

    #[test]
    fn mpi_launchers_meet_on_the_local_host_unless_told_otherwise() {
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(read(&open_mpi), environment(0, 2, "127.0.0.1", DEFAULT_PORT));
        let remote = [&open_mpi[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
        assert_eq!(read(&remote), Err(EnvironmentError::NoAddress { launcher: "Open MPI" }));
        let told = [&remote[..], &[("MASTER_ADDR", "a")]].concat();
        assert_eq!(read(&told), environment(0, 2, "a", DEFAULT_PORT));
        let mpich = [("PMI_RANK", "2"), ("PMI_SIZE", "3"), ("MPI_LOCALNRANKS", "3"), ("SLURM_PROCID", "0")];
        assert_eq!(read(&mpich), environment(2, 3, "127.0.0.1", DEFAULT_PORT));
    }

    #[test]
    fn slurm_gives_the_first_node() {
        let slurm = [("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8")];
        for (list, node) in [("gpu[01-03,7],login1", "gpu01"), ("a,b[1-2]", "a"), ("n[7]", "n7"), ("x", "x")]
        {
            let all = [&slurm[..], &[("SLURM_STEP_NODELIST", list)]].concat();
            assert_eq!(read(&all), environment(3, 8, node, DEFAULT_PORT), "{list}");
        }
        let launched = [&slurm[..], &[("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1")]].concat();
        assert_eq!(read(&launched), environment(3, 8, "10.0.0.1", DEFAULT_PORT));
        assert_eq!(read(&slurm), Err(EnvironmentError::NoAddress { launcher: "Slurm" }));
    }

    #[test]
    fn a_batch_script_of_slurm_is_started_by_no_launcher_but_a_step_is() {
        assert_eq!(find(&[]), Ok(None));
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_NODELIST", "a,b")];
        assert_eq!(find(&batch), Ok(None));
        for mark in ["SLURM_STEP_ID", "SLURM_STEP_NODELIST"] {
            let step = [&batch[..], &[(mark, "a")]].concat();
            assert_eq!(find(&step), environment(0, 8, "a", DEFAULT_PORT).map(Some), "{mark}");
        }
        let within = [&batch[..], &[("PMI_RANK", "1"), ("PMI_SIZE", "2")]].concat();
        assert_eq!(find(&within), environment(1, 2, "127.0.0.1", DEFAULT_PORT).map(Some));
    }

    #[test]
    fn missing_and_malformed_variables_are_named() {
        assert_eq!(read(&[("SLURM_NTASKS", "2")]), Err(EnvironmentError::NoLauncher));
        let missing = EnvironmentError::Missing { launcher: "torchrun", variable: "RANK" };
        assert_eq!(read(&[("WORLD_SIZE", "2")]), Err(missing.clone()));
        assert_eq!(find(&[("WORLD_SIZE", "2")]), Err(missing));
        let missing = EnvironmentError::Missing { launcher: "torchrun", variable: "WORLD_SIZE" };
        assert!(missing.to_string().contains("WORLD_SIZE"));
        assert_eq!(read(&[("RANK", "0")]), Err(missing));
        let malformed =
            |variable, value: &str| Err(EnvironmentError::Malformed { variable, value: value.to_owned() });
        assert_eq!(read(&[("RANK", "-1"), ("WORLD_SIZE", "2")]), malformed("RANK", "-1"));
        let all = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
        assert_eq!(read(&all), malformed("MASTER_PORT", "70000"));
        let outside = [("RANK", "2"), ("WORLD_SIZE", "2")];
        assert_eq!(read(&outside), Err(EnvironmentError::Rank { rank: 2, size: 2 }));
    }
}
