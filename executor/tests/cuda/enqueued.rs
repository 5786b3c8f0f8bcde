//! Every kernel of the table on every case that GPUs are compared with CPUs by: what it enqueues is in order, stays within
//! memory that is there, and gives outputs of the right types and shapes. Only what they hold is left to a GPU.

use super::Fallible;
use super::placed::{self, Outcome};
use super::streams::Gpu;
use super::walk::{Case, walk};
use anabranch_executor::device::Device;
use anabranch_executor::testing::LoneDevice;
use graph::Tensor;
use std::sync::Arc;

fn check(gpu: &Gpu, cpu: &Arc<dyn Device>, case: &Case) -> Fallible<Vec<String>> {
    let Case { def, node, inputs } = case;
    let (actual, expected) =
        match (placed::run(&gpu.device, def, node, inputs)?, placed::run(cpu, def, node, inputs)?) {
            (Ok(actual), Ok(expected)) => (actual, expected),
            (Err(_), Err(_)) => return Ok(vec![]),
            (actual, expected) => {
                let errors = [actual.err(), expected.err()].map(|error| error.map(|error| error.to_string()));
                return Ok(vec![format!("not both of GPU and CPU refuse: {errors:?}")]);
            }
        };
    let outputs = case.node.op.outputs.iter().map(|arg| def.is_on_host(arg.name));
    let mut wrong = different(&actual, &expected, outputs.collect());
    wrong.extend(gpu.driver.take_races());
    gpu.driver.log();
    Ok(wrong)
}

/// Outputs and variables that are of another type or shape, or, on the host, hold something else.
fn different(actual: &Outcome, expected: &Outcome, on_host: Vec<bool>) -> Vec<String> {
    let is_on_host = |i: usize| i < expected.outputs && on_host.get(i).copied().unwrap_or(false);
    let differ = |i: usize, a: &Option<Tensor>, e: &Option<Tensor>| match (a, e) {
        (Some(a), Some(e)) if is_on_host(i) => a != e,
        (Some(a), Some(e)) => (a.dtype(), a.shape()) != (e.dtype(), e.shape()),
        (a, e) => a.is_some() != e.is_some(),
    };
    let pairs = actual.values.iter().zip(&expected.values).enumerate();
    let wrong = pairs.filter(|(i, (a, e))| differ(*i, a, e));
    wrong.map(|(i, (a, e))| format!("value {i} is {a:?}, not like {e:?}")).collect()
}

#[test]
fn every_kernel_enqueues_what_gives_outputs_like_the_cpus() -> Fallible {
    let gpu = Gpu::new(1 << 30)?;
    let cpu: Arc<dyn Device> = Arc::new(LoneDevice::default());
    let count = walk(|case| check(&gpu, &cpu, case))?;
    assert!(count > 2000, "only {count} cases");
    let driver = gpu.driver.clone();
    drop(gpu);
    assert_eq!((driver.used(), driver.races()), (0, vec![]));
    Ok(())
}
