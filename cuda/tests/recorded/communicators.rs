//! Communicators whose members may be in several processes: connecting, reductions, failures and aborts, with a library
//! that is slow, fails or hangs.

use super::Fallible;
use super::software::gpu::{DEADLINE, Gpu};
use device::collective::{Merge, Reduction};
use device::device_collectives::{CommunicatorPlace, DeviceCommunicator};
use device::{DeviceTensor, Error, Value};
use graph::{Code, DType, Tensor};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

type Reduced = Receiver<device::Result<DeviceTensor>>;

fn gpus(count: usize) -> Fallible<Vec<Gpu>> {
    Gpu::group(1 << 20, &vec![true; count - 1])
}

/// Connects the GPU of a rank to a communicator of all GPUs.
fn connect(gpus: &[Gpu], rank: usize, key: &[u8]) -> Fallible<Arc<dyn DeviceCommunicator>> {
    let library = gpus[rank].device.processor().collectives().ok_or("a GPU has no collectives")?;
    Ok(library.connect(&CommunicatorPlace { key: key.to_vec(), rank, size: gpus.len() })?)
}

fn key(gpus: &[Gpu]) -> Fallible<Vec<u8>> {
    Ok(gpus[0].device.processor().collectives().ok_or("a GPU has no collectives")?.create_key()?)
}

/// Starts a GPU's part of a sum, and returns the receiver of its result.
fn sum(gpu: &Gpu, communicator: &Arc<dyn DeviceCommunicator>, part: &[f32]) -> Fallible<Reduced> {
    let part = Tensor::from_slice(part, graph::Shape::new(&[part.len()])?)?;
    let Value::Device(tensor) = gpu.upload(part)? else { return Err("not on the GPU".into()) };
    let (sender, receiver) = channel();
    communicator.all_reduce(Reduction::SUM, tensor, Box::new(move |sum| drop(sender.send(sum))));
    Ok(receiver)
}

fn check_clean(gpus: &[Gpu]) {
    let end = Instant::now() + DEADLINE;
    // The communicator's thread may still hold the tensors of its last reduction.
    while gpus.iter().any(|gpu| gpu.driver.used() > 0) && Instant::now() < end {
        std::thread::yield_now();
    }
    for gpu in gpus {
        assert_eq!((gpu.driver.used(), gpu.driver.races()), (0, vec![]));
    }
}

#[test]
fn members_get_the_sum_when_all_have_started() -> Fallible {
    let gpus = gpus(2)?;
    let key = key(&gpus)?;
    let first = connect(&gpus, 0, &key)?;
    assert!(!first.is_connected()?);
    let second = connect(&gpus, 1, &key)?;
    assert!(first.is_connected()? && second.is_connected()?);
    for round in 1..4 {
        let part = round as f32;
        let one = sum(&gpus[0], &first, &[part, 2.0])?;
        assert!(one.try_recv().is_err());
        let other = sum(&gpus[1], &second, &[10.0, 20.0])?;
        for (gpu, receiver) in gpus.iter().zip([one, other]) {
            let tensor = receiver.recv_timeout(DEADLINE)??;
            assert_eq!(gpu.download(tensor.into())?, Tensor::try_from([part + 10.0, 22.0])?);
        }
    }
    drop((first, second));
    assert_eq!(gpus[0].driver.communicators(), 0);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn an_abort_ends_a_reduction_whose_other_members_never_come() -> Fallible {
    let gpus = gpus(2)?;
    let key = key(&gpus)?;
    let communicators = [connect(&gpus, 0, &key)?, connect(&gpus, 1, &key)?];
    let waits = sum(&gpus[0], &communicators[0], &[1.0])?;
    gpus[0].log_until("Sum of 1 float, rank 0 of 2")?;
    assert!(waits.try_recv().is_err());
    communicators[0].abort();
    let error = waits.recv_timeout(DEADLINE)?.err().ok_or("the sum came to an end")?;
    assert_eq!(error.code(), Code::Aborted);
    // A second abort, and the drop, do nothing.
    communicators[0].abort();
    assert_eq!(communicators[0].is_connected().err().map(|e| e.code()), Some(Code::Aborted));
    let late = sum(&gpus[0], &communicators[0], &[1.0])?.recv_timeout(DEADLINE)?;
    assert_eq!(late.err().map(|e| e.code()), Some(Code::Aborted));
    drop(communicators);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn an_error_of_the_library_ends_reductions_and_is_reported() -> Fallible {
    let gpus = gpus(2)?;
    let key = key(&gpus)?;
    let communicators = [connect(&gpus, 0, &key)?, connect(&gpus, 1, &key)?];
    let waits = sum(&gpus[1], &communicators[1], &[1.0])?;
    gpus[0].driver.fail_communicators(Error::internal("a remote process has exited"));
    let error = waits.recv_timeout(DEADLINE)?.err().ok_or("the sum came to an end")?;
    assert!(error.to_string().contains("a remote process has exited"), "{error}");
    assert!(communicators[0].is_connected().is_err());
    drop(communicators);
    check_clean(&gpus);
    Ok(())
}

#[test]
fn a_member_that_hangs_leaves_the_others_unconnected() -> Fallible {
    let gpus = gpus(3)?;
    let key = key(&gpus)?;
    let two = [connect(&gpus, 0, &key)?, connect(&gpus, 2, &key)?];
    assert!(!two[0].is_connected()? && !two[1].is_connected()?);
    two.iter().for_each(|communicator| communicator.abort());
    assert_eq!(gpus[0].driver.communicators(), 0);
    // The next epoch has another key.
    let next = self::key(&gpus)?;
    let all = [connect(&gpus, 0, &next)?, connect(&gpus, 1, &next)?, connect(&gpus, 2, &next)?];
    assert!(all[1].is_connected()?);
    Ok(())
}

#[test]
fn gpus_have_different_identities_and_reduce_floats() -> Fallible {
    let gpus = gpus(2)?;
    let libraries: Vec<_> = gpus.iter().filter_map(|gpu| gpu.device.processor().collectives()).collect();
    assert_ne!(libraries[0].identity()?, libraries[1].identity()?);
    let divided = |merge| Reduction { merge, is_mean: true };
    for (dtype, reduction, expected) in [
        (DType::Float, Reduction::SUM, true),
        (DType::BFloat16, Reduction::MEAN, true),
        (DType::Int64, Reduction::MAX, true),
        (DType::Int64, Reduction::MEAN, false),
        (DType::Int32, Reduction::SUM, false),
        (DType::Float, divided(Merge::Mul), false),
    ] {
        assert_eq!(libraries[0].can_reduce(dtype, reduction), expected, "{dtype} {reduction:?}");
    }
    Ok(())
}
