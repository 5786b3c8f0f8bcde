//! Every kernel of the table, without a GPU, on every case that GPUs are compared with CPUs by: its PTX computes what the
//! CPU's kernel does, what it enqueues is in order and stays within memory that is there, and all memory is given back.

use super::Fallible;
use super::compared::{compare, cpu};
use super::recording::Recording;
use super::streams::Gpu;
use super::walk::{is_whole, walk};
use anabranch_device::gpu_options::GpuOptions;

#[test]
fn every_kernel_computes_what_the_cpu_does() -> Fallible {
    let options = GpuOptions { tf32: false, poison: true, ..GpuOptions::default() };
    let gpu = |driver| Gpu::over(driver, 0, &options);
    // A grid as large as the work wants, and one that walks it; of little memory, which some work is cut into parts by.
    let wide = gpu(Recording::new(1 << 30).that_computes())?;
    let narrow = gpu(Recording::new(1 << 22).that_computes().with_one_block())?;
    let cpu = cpu();
    let count = walk(|case| {
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
