//! State that stays on a GPU across steps: staged tensors, queues, session tensors, temporary variables,
//! mutexes, and snapshots of variables for a checkpoint.

use super::Fallible;
use super::folder::Folder;
use super::node_runner::{download, upload};
use device::Device;
use device::Value;
use device::gpu_options::GpuOptions;
use graph::{AttrValue, DType, Node, PartialShape, Tensor};
use kernels::testing::{make_kernel, run_kernel, run_node_on, run_op};
use std::sync::Arc;

fn node(op: &str, attrs: &[(&str, AttrValue)]) -> Fallible<Node> {
    let op = graph::ops::lookup(op).ok_or_else(|| format!("no op {op}"))?;
    Ok(attrs.iter().fold(Node::new("n", op), |node, (name, value)| node.with_attr(name, value.clone())))
}

type Gpu = Arc<Device>;

fn run(gpu: &Gpu, op: &str, attrs: &[(&str, AttrValue)], inputs: Vec<Value>) -> Fallible<Vec<Value>> {
    Ok(run_node_on(gpu, &node(op, attrs)?, inputs)?)
}

fn numbers(from: f32) -> Fallible<Tensor> {
    Ok(Tensor::vector(&(0..100).map(|i| from + i as f32).collect::<Vec<_>>())?)
}

#[test]
fn staged_tensors_stay_on_the_gpu() -> Fallible {
    let Some(gpu) = crate::first_gpu(&GpuOptions::default())? else { return Ok(()) };
    let types = AttrValue::from(vec![DType::Float, DType::Int32, DType::String]);
    let attrs = [("dtypes", types), ("shared_name", "area".into())];
    let tensors = [numbers(1.0)?, Tensor::vector(&[1i32, 2])?, Tensor::from("text")];
    let inputs = tensors.iter().map(|tensor| upload(&gpu, tensor.clone()));
    let inputs: Vec<Value> = inputs.collect::<Fallible<_>>()?;
    run(&gpu, "Stage", &attrs, inputs)?;
    assert_eq!(run(&gpu, "StageSize", &attrs, vec![])?.len(), 1);
    let outputs = run(&gpu, "Unstage", &attrs, vec![])?;
    assert!(matches!(outputs[..], [Value::Device(_), Value::Device(_), Value::Host(_)]), "{outputs:?}");
    for (output, tensor) in outputs.into_iter().zip(tensors) {
        assert_eq!(download(&gpu, output)?, tensor);
    }
    // A map staging area stages the two components of one key separately.
    let types = AttrValue::from(vec![DType::Float, DType::Float]);
    let of_map = |more: &[(&'static str, AttrValue)]| {
        let own = [("dtypes", types.clone()), ("shared_name", "map".into())];
        own.into_iter().chain(more.iter().cloned()).collect::<Vec<_>>()
    };
    let place = |place: i32| -> Fallible<[Value; 2]> {
        Ok([Tensor::from(7i64).into(), Tensor::vector(&[place])?.into()])
    };
    let one = of_map(&[("fake_dtypes", vec![DType::Float].into())]);
    for at in [1, 0] {
        let value = upload(&gpu, numbers(at as f32)?)?;
        run(&gpu, "MapStage", &one, place(at)?.into_iter().chain([value]).collect())?;
    }
    let whole = vec![Tensor::from(7i64).into(), Tensor::vector(&[0i32, 1])?.into()];
    let outputs = run(&gpu, "MapUnstage", &of_map(&[]), whole)?;
    for (output, from) in outputs.into_iter().zip([0.0, 1.0]) {
        assert!(matches!(output, Value::Device(_)), "{output:?}");
        assert_eq!(download(&gpu, output)?, numbers(from)?);
    }
    Ok(())
}

#[test]
fn queue_elements_stay_on_the_gpu_until_dequeued() -> Fallible {
    let Some(gpu) = crate::first_gpu(&GpuOptions::default())? else { return Ok(()) };
    let types = || AttrValue::from(vec![DType::Float, DType::String]);
    let shapes = AttrValue::from(vec![PartialShape::from([100usize]), PartialShape::scalar()]);
    let made = [("component_types", types()), ("shapes", shapes), ("shared_name", "q".into())];
    let queue = || run(&gpu, "FIFOQueueV2", &made, vec![]);
    for from in [1.0, 2.0] {
        let element = [upload(&gpu, numbers(from)?)?, Tensor::from("text").into()];
        run(
            &gpu,
            "QueueEnqueueV2",
            &[("Tcomponents", types())],
            queue()?.into_iter().chain(element).collect(),
        )?;
    }
    // An element of another shape than the queue's is refused.
    let element = [upload(&gpu, Tensor::from(1f32))?, Tensor::from("text").into()];
    let wrong = queue()?.into_iter().chain(element).collect();
    assert!(run(&gpu, "QueueEnqueueV2", &[("Tcomponents", types())], wrong).is_err());
    run(&gpu, "QueueCloseV2", &[], queue()?)?;
    let dequeue = || run(&gpu, "QueueDequeueV2", &[("component_types", types())], queue()?);
    for from in [1.0, 2.0] {
        let element = dequeue()?.remove(0);
        assert!(matches!(element, Value::Device(_)), "{element:?}");
        assert_eq!(download(&gpu, element)?, numbers(from)?);
    }
    let error = dequeue().err().ok_or("there is one more")?.to_string();
    assert!(error.contains("is closed and has insufficient elements"), "{error}");
    Ok(())
}

#[test]
fn session_tensor_stays_on_the_gpu_until_deleted() -> Fallible {
    let Some(gpu) = crate::first_gpu(&GpuOptions::default())? else { return Ok(()) };
    let value = upload(&gpu, numbers(3.0)?)?;
    let node = node("GetSessionHandleV2", &[("T", DType::Float.into())])?;
    let keep = make_kernel(&gpu, &node)?;
    let kept = run_kernel(&keep, &gpu, &node, vec![value])?.remove(0);
    let Value::Host(kept) = kept else { return Err(format!("{kept:?} is no handle").into()) };
    let name = Tensor::from(&*kept.as_resources()?[0].name);
    let found = run(&gpu, "GetSessionTensor", &[("dtype", DType::Float.into())], vec![name.clone().into()])?;
    let found = found.into_iter().next().unwrap_or_default();
    assert!(matches!(found, Value::Device(_)), "{found:?}");
    assert_eq!(download(&gpu, found)?, numbers(3.0)?);
    run(&gpu, "DeleteSessionTensor", &[], vec![name.clone().into()])?;
    assert!(run(&gpu, "GetSessionTensor", &[("dtype", DType::Float.into())], vec![name.into()]).is_err());
    drop(keep);
    Ok(())
}

#[test]
fn temporary_variable_is_updated_and_taken_on_the_gpu() -> Fallible {
    let Some(gpu) = crate::first_gpu(&GpuOptions::default())? else { return Ok(()) };
    let shape = PartialShape::from(numbers(0.0)?.shape());
    let made = [("dtype", DType::Float.into()), ("shape", shape.into()), ("var_name", "t".into())];
    let variable = run(&gpu, "TemporaryVariable", &made, vec![])?;
    let by = upload(&gpu, numbers(5.0)?)?;
    let changed = run(&gpu, "AssignAdd", &[("T", DType::Float.into())], vec![variable[0].clone(), by])?;
    let taken = [("T", DType::Float.into()), ("var_name", "t".into())];
    let value = run(&gpu, "DestroyTemporaryVariable", &taken, changed)?.remove(0);
    assert!(matches!(value, Value::Device(_)), "{value:?}");
    assert_eq!(download(&gpu, value)?, numbers(5.0)?);
    drop(variable);
    Ok(())
}

#[test]
fn mutex_lock_is_held_until_dropped() -> Fallible {
    let Some(gpu) = crate::first_gpu(&GpuOptions::default())? else { return Ok(()) };
    let mutex = run(&gpu, "MutexV2", &[("shared_name", "m".into())], vec![])?;
    for _ in 0..2 {
        let lock = run(&gpu, "MutexLock", &[], mutex.clone())?;
        run(&gpu, "ConsumeMutexLock", &[], lock)?;
    }
    Ok(())
}

fn strings(text: &str) -> Fallible<Tensor> {
    Ok(Tensor::from(text).reshaped([1].try_into()?)?)
}

#[test]
fn variable_snapshot_is_unaffected_by_later_updates() -> Fallible {
    let Some(gpu) = crate::first_gpu(&GpuOptions::default())? else { return Ok(()) };
    let folder = Folder::new("kept")?;
    let of = |op: &str, inputs: Vec<Value>| run(&gpu, op, &[("dtype", DType::Float.into())], inputs);
    let shape = PartialShape::from(numbers(0.0)?.shape());
    let made = [("dtype", DType::Float.into()), ("shape", shape.into()), ("shared_name", "v".into())];
    let variable = run(&gpu, "VarHandleOp", &made, vec![])?.remove(0);
    of("AssignVariableOp", vec![variable.clone(), upload(&gpu, numbers(1.0)?)?])?;
    let by = upload(&gpu, numbers(2.0)?)?;
    let aside = run(&gpu, "SetAsideVariable", &[], vec![variable.clone()])?;
    // The update changes the variable in place, after its old value has been downloaded.
    of("AssignAddVariableOp", vec![variable.clone(), by])?;
    let name = || ("shared_name", AttrValue::from("shard"));
    run(&gpu, "KeepSnapshot", &[("N", 1i64.into()), name()], aside)?;
    let prefix = Tensor::from(&*folder.file("model"));
    let inputs = [prefix.clone(), strings("v")?, strings("")?];
    let to_save = inputs.iter().cloned().chain([Tensor::from(true)]).map(Value::from).collect();
    run(&gpu, "SaveSnapshot", &[name()], to_save)?;
    let restored = run_op("RestoreV2", &inputs, &[("dtypes", vec![DType::Float].into())])?;
    assert_eq!(restored, [numbers(1.0)?]);
    let now = of("ReadVariableOp", vec![variable.clone()])?.remove(0);
    let sum: Vec<f32> = (0..100).map(|i| 3.0 + 2.0 * i as f32).collect();
    assert_eq!(download(&gpu, now)?, Tensor::vector(&sum)?);
    // A variable without a value has no snapshot.
    let made = [
        ("dtype", DType::Float.into()),
        ("shape", PartialShape::scalar().into()),
        ("shared_name", "w".into()),
    ];
    let empty = run(&gpu, "VarHandleOp", &made, vec![])?;
    let error = run(&gpu, "SetAsideVariable", &[], empty).err().ok_or("it is set aside")?.to_string();
    assert!(error.contains("w"), "{error}");
    Ok(())
}
