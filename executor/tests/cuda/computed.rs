//! What kernels compute, without a GPU: as their PTX says, beside what the CPU's do.

use super::Fallible;
use super::compared::{compare, cpu};
use super::recording::Recording;
use super::streams::Gpu;
use super::walk::walk;
use anabranch_executor::gpus::GpuOptions;

#[test]
fn every_kernel_computes_what_the_cpu_does() -> Fallible {
    let options = GpuOptions { tf32: false, poison: true, ..GpuOptions::default() };
    let gpu = Gpu::over(Recording::new(1 << 30).that_computes(), 0, &options)?;
    let cpu = cpu();
    let count = walk(|case| {
        let mut wrong = compare(&gpu.device, &cpu, case)?;
        wrong.extend(gpu.driver.take_races());
        Ok(wrong)
    })?;
    eprintln!("{count} cases");
    assert!(count > 2000 || std::env::var_os("ANABRANCH_GPU_SHARE").is_some(), "only {count} cases");
    Ok(())
}
