//! Behaviour of steps when the memory of a GPU does not suffice.

use super::Fallible;
use super::node_runner::{download, upload};
use client::{ServerConfig, Session, SessionOptions};
use device::gpu_options::GpuOptions;
use graph::{Code, DType, Node, Scope, Shape, Tensor};
use kernels::testing::run_node_on;

/// Returns GPU options that allow 1 % of the GPU's memory, so that a test can exhaust it.
fn little() -> GpuOptions {
    GpuOptions { memory_fraction: 0.01, ..GpuOptions::default() }
}

#[test]
fn out_of_memory_is_an_error_and_the_next_kernel_runs() -> Fallible {
    let Some(device) = crate::first_gpu(&little())? else { return Ok(()) };
    let op = graph::ops::lookup("Fill").ok_or("no Fill")?;
    let fill = Node::new("fill", op).with_attr("T", DType::Float);
    let value = upload(&device, Tensor::scalar(1.0f32))?;
    let filled = |dims: &[i32]| -> Fallible<device::Result<Vec<device::Value>>> {
        Ok(run_node_on(&device, &fill, vec![Tensor::vector(dims)?.into(), value.clone()]))
    };
    let error = filled(&[1 << 20, 1 << 10])?.err().ok_or("four gigabytes were there")?;
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(
        error.to_string().contains("for fill on /job:localhost/replica:0/task:0/device:GPU:0"),
        "{error}"
    );
    let small = filled(&[4])?.map_err(|e| e.to_string())?.remove(0);
    let small = download(&device, small)?;
    assert_eq!(small, Tensor::full(1.0f32, Shape::new(&[4])?)?);
    Ok(())
}

/// A variable holds more than half of the memory limit, and a step needs the same amount again.
#[test]
fn out_of_memory_step_names_requester_and_holders_and_the_next_runs() -> Fallible {
    let Some(device) = crate::first_gpu(&little())? else { return Ok(()) };
    let bytes = device.attributes().memory_limit * 6 / 10;
    let count = i64::try_from(bytes / 4)?;
    let root = Scope::new();
    let scope = root.device("/device:GPU:0");
    let variable = scope.var_handle("hog", DType::Float, graph::PartialShape::from([None]));
    let size = scope.placeholder("size", DType::Int64, [1usize]);
    let fill = |name: &str| {
        scope
            .op("Fill")
            .name(name)
            .input(size)
            .input(scope.constant(1.0f32))
            .attr("index_type", DType::Int64)
            .output()
    };
    let assigned = scope.assign_variable(variable, fill("holds"));
    let wanted = scope.sum(fill("wants"), &[0], false);
    let options = SessionOptions::default();
    let server = ServerConfig { gpus: little(), ..ServerConfig::default() };
    let session = Session::local_with(root.finish()?, server, options)?;
    let sized = |count: i64| -> Fallible<_> { Ok([(size, Tensor::vector(&[count])?)]) };
    session.run(&sized(count)?, &[], &[assigned])?;
    let error = session.run(&sized(count)?, &[wanted], &[]).err().ok_or("there was room for both")?;
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let told = error.to_string();
    assert!(
        told.contains("and type float for wants on /job:localhost/replica:0/task:0/device:GPU:0"),
        "{told}"
    );
    assert!(told.contains(&format!(": {} bytes, with ", 4 * count)), "{told}");
    assert!(
        told.contains(&format!("most is held by outputs of these nodes: holds ({})", 4 * count)),
        "{told}"
    );
    let sum = session.run(&sized(1000)?, &[wanted], &[])?.remove(0);
    assert_eq!(sum.item::<f32>()?, 1000.0);
    Ok(())
}
