//! Each kernel of the table, executed without a GPU on the test cases of `kernel_cases`: its PTX computes the
//! CPU kernel's result, its accesses are ordered and within allocated memory, and all memory is freed.

use super::Fallible;
use super::comparison::{compare, cpu};
use super::kernel_cases::{for_each_case, is_whole};
use super::software::gpu::Gpu;
use super::software::recording::RecordingDriver;
use device::gpu_options::GpuOptions;

#[test]
fn every_kernel_agrees_with_the_cpu() -> Fallible {
    let options = GpuOptions { tf32: false, poison: true, ..GpuOptions::default() };
    let gpu = |driver| Gpu::with_driver(driver, 0, &options);
    // One GPU runs grids of the requested size; the other runs one block that iterates over the grid, and has
    // little memory, so that some kernels divide their work into chunks.
    let wide = gpu(RecordingDriver::new(1 << 30).executing_ptx())?;
    let narrow = gpu(RecordingDriver::new(1 << 22).executing_ptx().with_one_block())?;
    let cpu = cpu();
    let count = for_each_case(|case| {
        let mut wrong = Vec::new();
        for gpu in [&wide, &narrow] {
            wrong.extend(compare(&gpu.device, &cpu, case)?);
            wrong.extend(gpu.driver.take_races());
            gpu.driver.log();
        }
        Ok(wrong)
    })?;
    assert!(count > 10_000 || !is_whole(), "only {count} cases");
    for gpu in [wide, narrow] {
        let driver = gpu.driver.clone();
        drop(gpu);
        assert_eq!((driver.used(), driver.races()), (0, vec![]));
    }
    Ok(())
}
