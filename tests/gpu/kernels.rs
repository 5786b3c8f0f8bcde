//! Compares each kernel of the GPU's table with the CPU's.

use super::Fallible;
use super::comparison::{compare, cpu};
use super::kernel_cases::{Case, for_each_case, is_whole};
use super::node_runner;
use device::gpu_options::GpuOptions;

#[test]
fn every_kernel_agrees_with_the_cpu() -> Fallible {
    // Poisoning writes all memory, which would hide reads of uninitialised memory from a sanitizer, so a
    // sanitizer can switch it off.
    let poison = std::env::var_os("ANABRANCH_GPU_UNPOISONED").is_none();
    let options = GpuOptions { tf32: false, poison, ..GpuOptions::default() };
    let Some(device) = crate::first_gpu(&options)? else { return Ok(()) };
    let cpu = cpu();
    let count = for_each_case(|case| compare(&device, &cpu, case))?;
    eprintln!("{count} cases");
    Ok(())
}

/// Checks the test cases themselves: the CPU must compute each case, and must give the same result a second time.
#[test]
fn every_case_runs_on_the_cpu() -> Fallible {
    let (one, other) = (cpu(), cpu());
    let count = for_each_case(|case| {
        let Case { def, node, inputs } = case;
        let refused = node_runner::run(&one, def, node, inputs)?.err().map(|error| error.to_string());
        Ok(refused.into_iter().chain(compare(&one, &other, case)?).collect())
    })?;
    assert!(count > 2000 || !is_whole(), "only {count} cases");
    Ok(())
}
