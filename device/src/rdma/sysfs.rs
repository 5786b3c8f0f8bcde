//! The kernel's description of RDMA devices, in the files of `/sys/class/infiniband`.

use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// The largest number of entries of a port's table of GIDs that is read.
const MAX_GIDS: u32 = 256;

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name of the device, such as `mlx5_0`.
    pub device: String,
    /// The number of the port, from 1 on.
    pub number: u32,
    pub state: PortState,
    pub link_layer: LinkLayer,
    /// The port's rate in Gbit/s; 0 if it is unknown.
    pub rate: u32,
    /// The entries of the port's table of GIDs that are in use.
    pub gids: Vec<Gid>,
    /// The device file through which the library reaches the device, and whether this process may open it; `None` if the
    /// kernel offers none.
    pub file: Option<(PathBuf, bool)>,
}

/// The state of a port, by the kernel's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortState {
    Active,
    /// Another state, in the kernel's words, such as `1: DOWN`.
    Other(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    InfiniBand,
    /// RDMA over converged Ethernet.
    Ethernet,
    Other(String),
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The address's position in the port's table of GIDs.
    pub index: u32,
    pub address: Ipv6Addr,
    pub kind: GidKind,
    /// The network interface of an Ethernet port.
    pub interface: Option<String>,
}

/// The protocol for which an address is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or version 1 of RDMA over Ethernet, which routers do not pass on.
    InfiniBandOrV1,
    /// Version 2 of RDMA over Ethernet, by UDP.
    V2,
}

/// Returns the ports of all devices below `devices`, in the order of their names and numbers; none if the folder does
/// not exist. `verbs` is the folder that names each device's file, `files` the folder of the device files.
pub fn read_ports(devices: &Path, verbs: &Path, files: &Path) -> Vec<Port> {
    let mut ports = Vec::new();
    for device in names(devices) {
        let folder = devices.join(&device).join("ports");
        let file = device_file(verbs, files, &device);
        let mut numbers: Vec<u32> = names(&folder).iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        ports.extend(numbers.into_iter().map(|number| {
            let port = folder.join(number.to_string());
            let state = line(&port.join("state"));
            let layer = line(&port.join("link_layer"));
            let rate = line(&port.join("rate"));
            Port {
                device: device.clone(),
                number,
                state: match state.starts_with("4:") {
                    true => PortState::Active,
                    false => PortState::Other(state),
                },
                link_layer: match layer.as_str() {
                    "InfiniBand" => LinkLayer::InfiniBand,
                    "Ethernet" => LinkLayer::Ethernet,
                    _ => LinkLayer::Other(layer),
                },
                // The kernel writes `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`.
                rate: rate.split(['.', ' ']).next().and_then(|gigabits| gigabits.parse().ok()).unwrap_or(0),
                gids: gids(&port),
                file: file.clone(),
            }
        }));
    }
    ports
}

/// Returns the entries of a port's table of GIDs that are not zero.
fn gids(port: &Path) -> Vec<Gid> {
    let entry = |index: u32| {
        let name = index.to_string();
        let address: Ipv6Addr = line(&port.join("gids").join(&name)).parse().ok()?;
        if address.is_unspecified() {
            return None;
        }
        let kind = match line(&port.join("gid_attrs/types").join(&name)).as_str() {
            "RoCE v2" => GidKind::V2,
            _ => GidKind::InfiniBandOrV1,
        };
        let interface = Some(line(&port.join("gid_attrs/ndevs").join(&name))).filter(|name| !name.is_empty());
        Some(Gid { index, address, kind, interface })
    };
    (0..MAX_GIDS)
        .take_while(|index| port.join("gids").join(index.to_string()).exists())
        .filter_map(entry)
        .collect()
}

/// Returns the device file of a device, and whether this process may open it for reading and writing.
fn device_file(verbs: &Path, files: &Path, device: &str) -> Option<(PathBuf, bool)> {
    let name = names(verbs).into_iter().find(|name| line(&verbs.join(name).join("ibdev")) == device)?;
    let file = files.join(name);
    let can_open = fs::OpenOptions::new().read(true).write(true).open(&file).is_ok();
    Some((file, can_open))
}

/// Returns the names in a folder, sorted; none if the folder cannot be read.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

/// Returns a file's text without white space around it; empty if the file cannot be read. The kernel refuses to read
/// entries of tables that are not in use.
fn line(file: &Path) -> String {
    fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// A folder that replaces the kernel's, removed when it is dropped.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> io::Result<Machine> {
            let folder = std::env::temp_dir().join(format!("anabranch-rdma-{}-{name}", std::process::id()));
            fs::create_dir_all(&folder)?;
            Ok(Machine(folder))
        }

        fn write(&self, file: &str, text: &str) -> io::Result<()> {
            let file = self.0.join(file);
            fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
            fs::write(file, format!("{text}\n"))
        }

        fn ports(&self) -> Vec<Port> {
            read_ports(&self.0.join("class"), &self.0.join("verbs"), &self.0.join("dev"))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_machine_without_the_folder_has_no_ports() {
        let none = Path::new("/nonexistent");
        assert_eq!(read_ports(none, none, none), []);
    }

    #[test]
    fn ports_are_read_with_state_layer_rate_addresses_and_file() -> io::Result<()> {
        let machine = Machine::new("ports")?;
        let port = "class/mlx5_0/ports/1";
        for (file, text) in [
            ("state", "4: ACTIVE"),
            ("link_layer", "Ethernet"),
            ("rate", "100 Gb/sec (4X EDR)"),
            ("gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe12:3456"),
            ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("gids/2", "0000:0000:0000:0000:0000:ffff:0a00:0001"),
            ("gid_attrs/types/0", "IB/RoCE v1"),
            ("gid_attrs/types/2", "RoCE v2"),
            ("gid_attrs/ndevs/2", "eth1"),
        ] {
            machine.write(&format!("{port}/{file}"), text)?;
        }
        machine.write("class/mlx5_0/ports/2/state", "1: DOWN")?;
        machine.write("class/mlx5_0/ports/2/link_layer", "InfiniBand")?;
        machine.write("verbs/uverbs3/ibdev", "mlx5_0")?;
        machine.write("dev/uverbs3", "")?;
        let ports = machine.ports();
        let [first, second] = ports.as_slice() else { panic!("{ports:?}") };
        assert_eq!((&*first.device, first.number, first.rate), ("mlx5_0", 1, 100));
        assert_eq!((&first.state, &first.link_layer), (&PortState::Active, &LinkLayer::Ethernet));
        let gids: Vec<_> =
            first.gids.iter().map(|gid| (gid.index, gid.kind, gid.interface.as_deref())).collect();
        assert_eq!(gids, [(0, GidKind::InfiniBandOrV1, None), (2, GidKind::V2, Some("eth1"))]);
        assert_eq!(first.gids[1].address.to_ipv4_mapped(), Some([10, 0, 0, 1].into()));
        assert_eq!(first.file, Some((machine.0.join("dev/uverbs3"), true)));
        assert_eq!((second.number, second.rate, second.gids.len()), (2, 0, 0));
        assert_eq!(second.state, PortState::Other("1: DOWN".into()));
        Ok(())
    }

    #[test]
    fn a_device_whose_file_cannot_be_opened_is_marked() -> io::Result<()> {
        let machine = Machine::new("files")?;
        machine.write("class/a/ports/1/state", "4: ACTIVE")?;
        machine.write("class/b/ports/1/state", "4: ACTIVE")?;
        machine.write("verbs/uverbs0/ibdev", "a")?;
        let files: Vec<_> = machine.ports().into_iter().map(|port| port.file).collect();
        assert_eq!(files, [Some((machine.0.join("dev/uverbs0"), false)), None]);
        Ok(())
    }
}
