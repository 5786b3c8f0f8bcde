//! The cache of kernels with state, shared by the graphs of a session.

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

/// The kernels of one session's stateful nodes. A node with the same device, name, op and attributes in another graph
/// of the session shares the kernel, with its state.
#[derive(Default)]
pub struct KernelCache {
    kernels: Mutex<FxHashMap<Key, Vec<CachedKernel>>>,
}

/// The name of the device and the name of the node.
type Key = (DeviceName, Arc<str>);

/// A cached kernel with its node. A key rarely has more than one kernel, because the graphs of a session grow but keep
/// their nodes.
struct CachedKernel {
    node: Node,
    kernel: Arc<Kernel>,
}

impl KernelCache {
    /// Creates an empty cache.
    pub fn new() -> KernelCache {
        KernelCache::default()
    }

    /// Returns the node's kernel on the device: from the cache if the op is stateful, else a new one.
    ///
    /// # Errors
    /// An error that names the node if there is no kernel for it, or its attributes are invalid.
    pub(crate) fn kernel(
        &self,
        device: &Arc<Device>,
        node: &Node,
        functions: &Arc<dyn Functions>,
    ) -> Result<Arc<Kernel>> {
        if !node.op.is_stateful() {
            return make_kernel(device, node, functions);
        }
        let key = (device.name().clone(), node.name.clone());
        let mut kernels = self.kernels.lock();
        let of_name = kernels.entry(key).or_default();
        if let Some(cached) = of_name.iter().find(|cached| cached.node.computes_same_as(node)) {
            return Ok(cached.kernel.clone());
        }
        let kernel = make_kernel(device, node, functions)?;
        of_name.push(CachedKernel { node: node.clone(), kernel: kernel.clone() });
        Ok(kernel)
    }
}

fn make_kernel(device: &Arc<Device>, node: &Node, functions: &Arc<dyn Functions>) -> Result<Arc<Kernel>> {
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
