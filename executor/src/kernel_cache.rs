//! Kernels with state, kept across the graphs of a session.

use device::Device;
use device::function::Functions;
use device::kernel::{Kernel, KernelInit};
use device::kernel_table::no_kernel;
use device::{Error, Result};
use graph::{DeviceName, Node};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The kernels of one session's stateful nodes: a node of the same device, name, op and attributes in another
/// graph of the session continues the same kernel, with whatever state it has.
#[derive(Default)]
pub struct KernelCache {
    kernels: Mutex<FxHashMap<Key, Vec<Kept>>>,
}

/// The device's name and the node's.
type Key = (DeviceName, Arc<str>);

/// One kernel under a name. A session rarely has more than one: its graphs grow, and names stay.
struct Kept {
    node: Node,
    kernel: Arc<Kernel>,
}

impl KernelCache {
    pub fn new() -> KernelCache {
        KernelCache::default()
    }

    /// The node's kernel on the device: kept or new if the op is stateful, else new.
    ///
    /// # Errors
    /// With the node's name: no kernel takes the node, or it refuses its attributes.
    pub(crate) fn kernel(
        &self,
        device: &Arc<Device>,
        node: &Node,
        functions: &Arc<dyn Functions>,
    ) -> Result<Arc<Kernel>> {
        if !node.op.is_stateful() {
            return make(device, node, functions);
        }
        let key = (device.name().clone(), node.name.clone());
        let mut kernels = self.kernels.lock();
        let of_name = kernels.entry(key).or_default();
        if let Some(kept) = of_name.iter().find(|kept| kept.node.computes_same_as(node)) {
            return Ok(kept.kernel.clone());
        }
        let kernel = make(device, node, functions)?;
        of_name.push(Kept { node: node.clone(), kernel: kernel.clone() });
        Ok(kernel)
    }
}

fn make(device: &Arc<Device>, node: &Node, functions: &Arc<dyn Functions>) -> Result<Arc<Kernel>> {
    let def = device.find_kernel(node).ok_or_else(|| no_kernel(&[device.kernels()], node))?;
    let (inputs, outputs) = (node.input_types()?, node.output_types()?);
    let init = KernelInit { node, inputs: &inputs, outputs: &outputs, device, functions };
    catch_unwind(AssertUnwindSafe(|| (def.make)(&init)))
        .unwrap_or_else(|payload| Err(Error::panicked(node, payload.as_ref())))
        .map(Arc::new)
        .map_err(|error: Error| error.at_node(&node.name))
}

impl fmt::Debug for KernelCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelCache({} names)", self.kernels.lock().len())
    }
}
