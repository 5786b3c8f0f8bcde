//! Compiles and loads each kernel of the GPU's kernel table, which fills the compiler's cache for later
//! tests.

use super::Fallible;
use super::op_nodes::rows;
use device::gpu_options::GpuOptions;
use kernels::testing::make_kernel;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

#[test]
fn every_kernel_compiles_and_loads() -> Fallible {
    if crate::first_gpu(&GpuOptions::default())?.is_none() {
        return Ok(());
    }
    let rows = rows(cuda::table())?;
    let next = AtomicUsize::new(0);
    // Each thread has its own device, because a device loads one kernel at a time.
    let compile = || -> Result<(), String> {
        let device = crate::first_gpu(&GpuOptions::default()).map_err(|e| e.to_string())?.ok_or("no GPU")?;
        while let Some((def, nodes)) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
            for node in nodes {
                make_kernel(&device, node).map_err(|e| format!("{def:?} for {:?}: {e}", node.attrs))?;
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(compile)).collect();
        for thread in all {
            thread.join().map_err(|_| "a thread panicked")??;
        }
        Ok(())
    })
}
