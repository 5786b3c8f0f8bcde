//! Every kernel of the GPU's table against the CPU's.

use super::Fallible;
use super::compared::{compare, cpu};
use super::placed;
use super::walk::{Case, is_whole, walk};
use device::gpu_options::GpuOptions;

#[test]
fn every_kernel_computes_what_the_cpu_does() -> Fallible {
    // A tool that looks for reads of memory that nobody has written must not see it written.
    let poison = std::env::var_os("ANABRANCH_GPU_UNPOISONED").is_none();
    let options = GpuOptions { tf32: false, poison, ..GpuOptions::default() };
    let Some(device) = crate::first_gpu(&options)? else { return Ok(()) };
    let cpu = cpu();
    let count = walk(|case| compare(&device, &cpu, case))?;
    eprintln!("{count} cases");
    Ok(())
}

/// What the GPU is compared with is there: no case is refused, and none is different the next time.
#[test]
fn every_case_is_one_that_the_cpu_computes() -> Fallible {
    let (one, other) = (cpu(), cpu());
    let count = walk(|case| {
        let Case { def, node, inputs } = case;
        let refused = placed::run(&one, def, node, inputs)?.err().map(|error| error.to_string());
        Ok(refused.into_iter().chain(compare(&one, &other, case)?).collect())
    })?;
    assert!(count > 2000 || !is_whole(), "only {count} cases");
    Ok(())
}
