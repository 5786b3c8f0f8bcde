//! Each kernel of the table, executed without a GPU on the test cases of `kernel_cases`: its PTX computes the
//! CPU kernel's result, its accesses are ordered and within allocated memory, and all memory is freed.

use super::Fallible;
use super::comparison::{compare, cpu};
use super::kernel_cases::{for_each_case, is_whole};
use super::software::gpu::Gpu;
use super::software::recording::RecordingDriver;
use device::gpu_options::GpuOptions;

/// Grids have the requested size.
#[test]
fn every_kernel_agrees_with_the_cpu_in_a_whole_grid() -> Fallible {
    agrees_with_the_cpu(RecordingDriver::new(1 << 30).executing_ptx())
}

/// One block iterates over the grid, and little memory makes some kernels divide their work into chunks.
#[test]
fn every_kernel_agrees_with_the_cpu_in_one_block() -> Fallible {
    agrees_with_the_cpu(RecordingDriver::new(1 << 22).executing_ptx().with_one_block())
}

/// Compares all kernels of a GPU with those of the CPU.
fn agrees_with_the_cpu(driver: RecordingDriver) -> Fallible {
    let gpu =
        Gpu::with_driver(driver, 0, &GpuOptions { tf32: false, poison: true, ..GpuOptions::default() })?;
    let cpu = cpu();
    let count = for_each_case(|case| {
        let mut wrong = compare(&gpu.device, &cpu, case)?;
        wrong.extend(gpu.driver.take_races());
        gpu.driver.log();
        Ok(wrong)
    })?;
    assert!(count > 10_000 || !is_whole(), "only {count} cases");
    let driver = gpu.driver.clone();
    drop(gpu);
    assert_eq!((driver.used(), driver.races()), (0, vec![]));
    Ok(())
}
