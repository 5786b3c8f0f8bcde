//! `anabranch doctor`: prints the facts about this machine that determine the routes of tensors: NVIDIA's libraries and
//! GPUs, shared memory, RDMA devices.

use crate::command::output;
use device::gpu_options::GpuSelection;
use device::rdma::{RdmaFacts, refusal};
use device::shared_memory::SharedMemory;
use std::fmt::Write;
use std::io;
use worker::gpus;

pub(crate) fn run() -> io::Result<()> {
    let mut text = String::new();
    for library in gpus::libraries() {
        let found = library.found.unwrap_or_else(|why| format!("not found: {why}"));
        let _ = writeln!(text, "{:<10} {found} ({})", library.name, library.purpose);
    }
    match gpus::find_gpus(&GpuSelection::All) {
        Ok(found) => found.iter().for_each(|gpu| text.push_str(&format!("{gpu}\n"))),
        Err(error) => {
            let _ = writeln!(text, "no GPU: {error}");
        }
    }
    text.push_str(&shared_memory());
    text.push_str(&rdma(&RdmaFacts::of_machine()));
    output::print(&text)
}

/// Returns a line that says whether tasks of this machine can share memory.
fn shared_memory() -> String {
    match SharedMemory::new(4096) {
        Ok(_) => "shared memory: tensors between tasks of this machine are read in place\n".to_owned(),
        Err(error) => format!("no shared memory: {error}; tensors between tasks of this machine go by TCP\n"),
    }
}

/// Returns lines about the ports of RDMA devices, and about the route of tensors to other machines.
fn rdma(facts: &RdmaFacts) -> String {
    let mut text = String::new();
    for port in &facts.ports {
        let (device, number, layer, rate) = (&port.device, port.number, &port.link_layer, port.rate);
        let state = match refusal(port) {
            Some(reason) => format!("not usable: {reason}"),
            None => "usable".to_owned(),
        };
        let _ = writeln!(text, "RDMA device {device} port {number}, {layer:?}, {rate} Gbit/s: {state}");
    }
    match facts.port() {
        Ok(choice) => {
            let (device, port, gid) = (choice.device, choice.port, choice.gid);
            let _ = writeln!(
                text,
                "RDMA: {device} port {port} would be used by its address {} (entry {}); this version does not drive RDMA \
                 devices yet, tensors to other machines go by TCP",
                gid.address, gid.index
            );
        }
        Err(why) => {
            let _ = writeln!(text, "no RDMA: {why}; tensors to other machines go by TCP");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::rdma::{Gid, GidKind, LinkLayer, Port, PortState};

    fn facts(gids: &[&str]) -> RdmaFacts {
        let gids = (0..).zip(gids).filter_map(|(index, address)| {
            Some(Gid { index, address: address.parse().ok()?, kind: GidKind::V2, interface: None })
        });
        let port = Port {
            device: "mlx5_0".to_owned(),
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            rate: 100,
            gids: gids.collect(),
            file: Some(("/dev/infiniband/uverbs0".into(), true)),
        };
        RdmaFacts { ports: vec![port], library: Ok(()) }
    }

    #[test]
    fn the_report_names_each_port_and_the_way_that_is_taken() {
        let found = rdma(&facts(&["::ffff:10.0.0.1"]));
        assert!(found.contains("mlx5_0 port 1, Ethernet, 100 Gbit/s: usable\n"), "{found}");
        assert!(found.contains("address ::ffff:10.0.0.1 (entry 0)") && found.contains("by TCP"), "{found}");
        let refused = rdma(&facts(&[]));
        assert!(refused.contains("not usable: it has no address for version 2"), "{refused}");
        let none = rdma(&RdmaFacts { ports: Vec::new(), library: Ok(()) });
        assert_eq!(
            none,
            "no RDMA: /sys/class/infiniband lists no RDMA device; tensors to other machines go by TCP\n"
        );
    }
}
