//! Interned device specifications, and how two of them are merged.

use crate::error::Result;
use graph::{DeviceSpec, Graph, NodeId};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The index of a specification in a [`Specs`] table; 0 is the empty specification.
pub(crate) type SpecId = u32;

/// Describes the first field in which two incompatible specifications differ, and both specifications.
pub(crate) fn conflict(a: &DeviceSpec, b: &DeviceSpec) -> String {
    let what = if differ(&a.job, &b.job) {
        "jobs"
    } else if differ(&a.replica, &b.replica) {
        "replicas"
    } else if differ(&a.task, &b.task) {
        "tasks"
    } else if differ(&a.device_type, &b.device_type) {
        "types"
    } else {
        "ids"
    };
    format!("Cannot merge devices with incompatible {what}: '{a}' and '{b}'")
}

/// Returns whether both fields are set and differ.
pub(crate) fn differ<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
    a.is_some() && b.is_some() && a != b
}

/// Returns the specification that requires both `a` and `b`, or `None` if they contradict each other. A soft
/// merge resolves a conflict of device types by dropping the type and the device number, and a conflict of
/// numbers by dropping the number.
fn merge(a: &DeviceSpec, b: &DeviceSpec, soft: bool) -> Option<DeviceSpec> {
    if a.is_compatible(b) {
        return Some(a.or(b));
    }
    let same_process =
        !differ(&a.job, &b.job) && !differ(&a.replica, &b.replica) && !differ(&a.task, &b.task);
    if !soft || !same_process {
        return None;
    }
    let mut merged = a.or(b);
    merged.id = None;
    if differ(&a.device_type, &b.device_type) {
        merged.device_type = None;
    }
    Some(merged)
}

/// The table of the distinct device specifications of a graph.
#[derive(Debug)]
pub(crate) struct Specs {
    all: Vec<DeviceSpec>,
    ids: FxHashMap<DeviceSpec, SpecId>,
    merged: FxHashMap<(SpecId, SpecId, bool), Option<SpecId>>,
}

impl Specs {
    pub(crate) fn new() -> Specs {
        let mut specs = Specs { all: Vec::new(), ids: FxHashMap::default(), merged: FxHashMap::default() };
        specs.intern(DeviceSpec::default());
        specs
    }

    pub(crate) fn get(&self, id: SpecId) -> &DeviceSpec {
        &self.all[id as usize]
    }

    pub(crate) fn intern(&mut self, spec: DeviceSpec) -> SpecId {
        if let Some(&id) = self.ids.get(&spec) {
            return id;
        }
        let id = self.all.len() as SpecId;
        self.all.push(spec.clone());
        self.ids.insert(spec, id);
        id
    }

    /// Returns the specification that requires both `a` and `b`, or `None` if they contradict each other. If `soft`, a
    /// contradiction of device types or numbers is resolved by dropping these fields.
    pub(crate) fn merge(&mut self, a: SpecId, b: SpecId, soft: bool) -> Option<SpecId> {
        if a == b || b == 0 {
            return Some(a);
        }
        if a == 0 {
            return Some(b);
        }
        if let Some(&known) = self.merged.get(&(a, b, soft)) {
            return known;
        }
        let merged = merge(self.get(a), self.get(b), soft).map(|spec| self.intern(spec));
        self.merged.insert((a, b, soft), merged);
        merged
    }

    /// Returns `strong` completed with the fields of `weak` that `strong` leaves open. The device number of `weak` is
    /// used only together with its device type.
    pub(crate) fn override_with(&mut self, strong: SpecId, weak: SpecId) -> SpecId {
        if strong == 0 || strong == weak {
            return weak;
        }
        let (s, w) = (self.get(strong), self.get(weak));
        let mut spec = s.or(w);
        if differ(&s.device_type, &w.device_type) {
            spec.id = s.id;
        }
        self.intern(spec)
    }
}

/// A cache of the parsed device field of nodes, so that each distinct text is parsed once.
pub(crate) struct DeviceTexts<T> {
    by_address: FxHashMap<usize, T>,
    by_text: FxHashMap<Arc<str>, T>,
    last: Option<(usize, T)>,
}

impl<T: Copy> DeviceTexts<T> {
    pub(crate) fn new() -> DeviceTexts<T> {
        DeviceTexts { by_address: FxHashMap::default(), by_text: FxHashMap::default(), last: None }
    }

    /// Returns the result of `read` for the node's device text, from the cache if the text is in it. The
    /// graph's device texts must stay alive between calls, because the cache is keyed by their addresses.
    pub(crate) fn of(
        &mut self,
        graph: &Graph,
        id: NodeId,
        read: impl FnOnce(&Arc<str>) -> Result<T>,
    ) -> Result<T> {
        let text = &graph.node(id).device;
        // Equal texts may be stored at two addresses, but while the graph is borrowed an address holds the
        // same text.
        let address = Arc::as_ptr(text).cast::<u8>() as usize;
        if let Some((last, value)) = self.last
            && last == address
        {
            return Ok(value);
        }
        let value = match self.by_address.get(&address) {
            Some(&value) => value,
            None => {
                let value = match self.by_text.get(text) {
                    Some(&value) => value,
                    None => {
                        let value = read(text)?;
                        self.by_text.insert(text.clone(), value);
                        value
                    }
                };
                self.by_address.insert(address, value);
                value
            }
        };
        self.last = Some((address, value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(a: &str, b: &str, soft: bool) -> Result<String> {
        let (a, b) = (DeviceSpec::parse(a)?, DeviceSpec::parse(b)?);
        Ok(merge(&a, &b, soft).map_or_else(|| conflict(&a, &b), |s| s.to_string()))
    }

    #[test]
    fn specifications_are_merged() -> Result<()> {
        for (a, b, soft, expected) in [
            ("/job:ps", "/task:1", false, "/job:ps/task:1"),
            (
                "/job:ps",
                "/job:w",
                true,
                "Cannot merge devices with incompatible jobs: '/job:ps' and '/job:w'",
            ),
            (
                "/replica:0",
                "/replica:1",
                true,
                "Cannot merge devices with incompatible replicas: '/replica:0' and '/replica:1'",
            ),
            (
                "/task:0",
                "/task:1",
                true,
                "Cannot merge devices with incompatible tasks: '/task:0' and '/task:1'",
            ),
            (
                "/device:CPU:0",
                "/device:GPU:0",
                false,
                "Cannot merge devices with incompatible types: '/device:CPU:0' and '/device:GPU:0'",
            ),
            ("/job:a/device:CPU:0", "/device:GPU:0", true, "/job:a"),
            (
                "/device:CPU:0",
                "/device:CPU:1",
                false,
                "Cannot merge devices with incompatible ids: '/device:CPU:0' and '/device:CPU:1'",
            ),
            ("/device:CPU:0", "/device:CPU:1", true, "/device:CPU:*"),
        ] {
            assert_eq!(merged(a, b, soft)?, expected);
        }
        Ok(())
    }
}
