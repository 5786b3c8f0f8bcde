//! The overhead of loops: nanoseconds per node and iteration, for a loop that counts to a million.

use anabranch_executor::{Executor, KernelCache};
use device::cancel::Cancellation;
use device::kernel::Step;
use device::{Error, LocalRendezvous, Pool, Result};
use graph::Graph;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The allocator of the binaries.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ITERATIONS: usize = 1_000_000;

/// The number of nodes that run in each iteration, including the Exit, which is dead except in the last iteration.
const NODES: usize = 9;

fn counting(parallel: usize) -> Result<Graph> {
    let attrs = format!("T=int32, frame_name=\"loop\", parallel_iterations={parallel}");
    Ok(Graph::from_text(&format!(
        "zero = Const[dtype=int32, value=int32<>{{0}}]
limit = Const[dtype=int32, value=int32<>{{{ITERATIONS}}}]
enter = Enter[{attrs}](zero)
until = Enter[{attrs}, is_constant=true](limit)
merge = Merge[T=int32, N=2](enter, next)
less = Less[T=int32](merge, until)
more = LoopCond(less)
switch = Switch[T=int32](merge, more)
exit = Exit[T=int32](switch)
at = Identity[T=int32](switch:1)
one = Const[dtype=int32, value=int32<>{{1}}](^at)
then = AddV2[T=int32](at, one)
next = NextIteration[T=int32](then)
"
    ))?)
}

fn main() -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout();
    for threads in [1, 2] {
        for parallel in [1, 10] {
            let device = Arc::new(kernels::lone_device());
            let graph = counting(parallel)?;
            let executor = Arc::new(Executor::new(&graph, device, Pool::new(threads)?, &KernelCache::new())?);
            let mut times = Vec::new();
            for id in 0..7 {
                let rendezvous = Arc::new(LocalRendezvous::new());
                let step = Arc::new(Step::new(id, rendezvous, Arc::new(Cancellation::new())));
                let (sender, receiver) = mpsc::channel();
                let started = Instant::now();
                executor.run(step, false, Box::new(move |result| drop(sender.send(result))));
                let result = receiver.recv_timeout(Duration::from_secs(60));
                times.push(started.elapsed().as_nanos() as f64 / (ITERATIONS * NODES) as f64);
                result.map_err(|e| Error::internal(e.to_string()))??;
            }
            times.sort_by(f64::total_cmp);
            let (median, best) = (times[times.len() / 2], times[0]);
            let _ = writeln!(
                out,
                "{parallel:>2} iterations at once, {threads} threads: {median:6.1} ns/node, at best {best:6.1}"
            );
        }
    }
    Ok(())
}
