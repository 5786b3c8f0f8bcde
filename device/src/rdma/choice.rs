//! The choice of a port and of its address.

use super::sysfs::{Gid, GidKind, LinkLayer, Port, PortState};
use std::cmp::Reverse;

/// A port that a fabric can use, with its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortChoice {
    pub device: String,
    pub port: u32,
    pub link_layer: LinkLayer,
    /// The port's rate in Gbit/s.
    pub rate: u32,
    pub gid: Gid,
}

/// Returns the port with the highest rate among those that can be used; of equal ones the first.
pub fn choose(ports: &[Port]) -> Option<PortChoice> {
    let usable = ports.iter().filter(|port| refusal(port).is_none());
    let port = usable.min_by_key(|port| Reverse(port.rate))?;
    Some(PortChoice {
        device: port.device.clone(),
        port: port.number,
        link_layer: port.link_layer.clone(),
        rate: port.rate,
        gid: address(port)?.clone(),
    })
}

/// Returns the reason why a port cannot be used; `None` if it can.
pub fn refusal(port: &Port) -> Option<String> {
    if let PortState::Other(state) = &port.state {
        return Some(format!("its state is '{state}', not '4: ACTIVE'"));
    }
    match &port.file {
        None => {
            return Some("the kernel offers no device file for it (is the module ib_uverbs loaded?)".into());
        }
        Some((file, false)) => {
            return Some(format!("this process may not open {} for reading and writing", file.display()));
        }
        Some((_, true)) => {}
    }
    if let LinkLayer::Other(layer) = &port.link_layer {
        return Some(format!("its link layer is '{layer}', neither InfiniBand nor Ethernet"));
    }
    match (address(port), &port.link_layer) {
        (Some(_), _) => None,
        (None, LinkLayer::Ethernet) => Some("it has no address for version 2 of RDMA over Ethernet".into()),
        (None, _) => Some("it has no address".into()),
    }
}

/// Returns the address of a port that other machines can reach. On Ethernet the address is one for version 2,
/// preferably an IPv4 address, else preferably one that is not link-local; on InfiniBand it is the first one.
fn address(port: &Port) -> Option<&Gid> {
    match port.link_layer {
        LinkLayer::Ethernet => {
            let routable = port.gids.iter().filter(|gid| gid.kind == GidKind::V2);
            routable.min_by_key(|gid| match gid.address.to_ipv4_mapped() {
                Some(_) => 0,
                None if !gid.address.is_unicast_link_local() => 1,
                None => 2,
            })
        }
        _ => port.gids.first(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::RdmaFacts;
    use super::*;

    fn gid(index: u32, address: &str, kind: GidKind) -> Option<Gid> {
        Some(Gid { index, address: address.parse().ok()?, kind, interface: None })
    }

    fn port(device: &str, link_layer: LinkLayer, rate: u32, gids: Vec<Option<Gid>>) -> Port {
        Port {
            device: device.to_owned(),
            number: 1,
            state: PortState::Active,
            link_layer,
            rate,
            gids: gids.into_iter().flatten().collect(),
            file: Some(("/dev/infiniband/uverbs0".into(), true)),
        }
    }

    fn infiniband(device: &str, rate: u32) -> Port {
        port(device, LinkLayer::InfiniBand, rate, vec![gid(0, "fe80::1", GidKind::InfiniBandOrV1)])
    }

    #[test]
    fn the_fastest_usable_port_is_chosen_and_the_first_of_equal_ones() {
        let down = Port { state: PortState::Other("1: DOWN".into()), ..infiniband("c", 400) };
        let ports = [infiniband("a", 100), infiniband("b", 200), infiniband("d", 200), down];
        assert_eq!(choose(&ports).map(|choice| (choice.device, choice.rate)), Some(("b".into(), 200)));
        assert_eq!(choose(&ports[3..]), None);
    }

    #[test]
    fn an_ethernet_port_is_used_by_a_routable_address() {
        let (v1, v2) = (GidKind::InfiniBandOrV1, GidKind::V2);
        let gids = [
            gid(0, "fe80::1", v1),
            gid(1, "fe80::1", v2),
            gid(2, "2001:db8::1", v2),
            gid(3, "::ffff:10.0.0.1", v1),
            gid(4, "::ffff:10.0.0.1", v2),
        ];
        for (count, expected) in [(5, Some(4)), (4, Some(2)), (2, Some(1)), (1, None)] {
            let ports = [port("a", LinkLayer::Ethernet, 25, gids[..count].to_vec())];
            assert_eq!(choose(&ports).map(|choice| choice.gid.index), expected, "of {count}");
        }
    }

    #[test]
    fn each_refusal_names_its_reason() {
        let usable = infiniband("a", 100);
        assert_eq!(refusal(&usable), None);
        let ethernet = port("a", LinkLayer::Ethernet, 25, vec![gid(0, "fe80::1", GidKind::InfiniBandOrV1)]);
        let cases = [
            (Port { state: PortState::Other("2: INIT".into()), ..usable.clone() }, "its state is '2: INIT'"),
            (Port { file: None, ..usable.clone() }, "no device file"),
            (Port { file: Some(("/dev/x".into(), false)), ..usable.clone() }, "may not open /dev/x"),
            (Port { gids: Vec::new(), ..usable.clone() }, "it has no address"),
            (Port { link_layer: LinkLayer::Other("OPA".into()), ..usable.clone() }, "link layer is 'OPA'"),
            (ethernet, "no address for version 2"),
        ];
        for (port, expected) in cases {
            assert!(refusal(&port).is_some_and(|reason| reason.contains(expected)), "{expected}");
        }
    }

    #[test]
    fn a_machine_without_devices_library_or_usable_ports_says_so() {
        let facts = |ports, library| RdmaFacts { ports, library };
        let missing = || Err("no such file".to_owned());
        let none = facts(Vec::new(), missing()).port();
        assert_eq!(none, Err("/sys/class/infiniband lists no RDMA device".into()));
        let without_library = facts(vec![infiniband("a", 1)], missing()).port();
        assert_eq!(without_library, Err("libibverbs.so.1 cannot be used: no such file".into()));
        let down = Port { state: PortState::Other("1: DOWN".into()), ..infiniband("a", 1) };
        let why = "a port 1: its state is '1: DOWN', not '4: ACTIVE'";
        assert_eq!(facts(vec![down], Ok(())).port(), Err(why.into()));
        assert!(facts(vec![infiniband("a", 1)], Ok(())).port().is_ok());
    }
}
