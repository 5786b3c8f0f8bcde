//! The RDMA devices of this machine: their ports as the kernel describes them, the library that drives them, and the port
//! that a fabric would use, or the reason why there is none.

mod choice;
mod sysfs;

pub use choice::{PortChoice, choose, refusal};
pub use sysfs::{Gid, GidKind, LinkLayer, Port, PortState, read_ports};

use crate::shared_library::SharedLibrary;
use std::path::Path;

/// The library of user-space drivers of RDMA devices.
pub const LIBRARY: SharedLibrary = SharedLibrary {
    file: "libibverbs.so.1",
    functions: &[
        "ibv_get_device_list",
        "ibv_free_device_list",
        "ibv_get_device_name",
        "ibv_open_device",
        "ibv_close_device",
        "ibv_alloc_pd",
        "ibv_dealloc_pd",
        "ibv_reg_mr",
        "ibv_dereg_mr",
        "ibv_create_cq",
        "ibv_destroy_cq",
        "ibv_create_qp",
        "ibv_modify_qp",
        "ibv_destroy_qp",
    ],
};

/// The folders in which the kernel describes RDMA devices, in which it names their device files, and in which the
/// device files are.
const DEVICES: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
const FILES: &str = "/dev/infiniband";

/// The facts about RDMA on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaFacts {
    /// The ports of all devices, in the order of their names and numbers.
    pub ports: Vec<Port>,
    /// The reason why the library cannot be used.
    pub library: Result<(), String>,
}

impl RdmaFacts {
    /// Returns the facts about this machine.
    pub fn of_machine() -> RdmaFacts {
        let ports = read_ports(Path::new(DEVICES), Path::new(VERBS), Path::new(FILES));
        RdmaFacts { ports, library: LIBRARY.check() }
    }

    /// Returns the port that a fabric would use.
    ///
    /// # Errors
    /// The reason why no port can be used, with the reason for each port.
    pub fn port(&self) -> Result<PortChoice, String> {
        if self.ports.is_empty() {
            return Err(format!("{DEVICES} lists no RDMA device"));
        }
        if let Err(why) = &self.library {
            return Err(format!("{} cannot be used: {why}", LIBRARY.file));
        }
        choose(&self.ports).ok_or_else(|| {
            let reasons = self
                .ports
                .iter()
                .filter_map(|port| Some(format!("{} port {}: {}", port.device, port.number, refusal(port)?)));
            reasons.collect::<Vec<_>>().join("; ")
        })
    }
}
