//! Tests of variables by name and of partitioned variables.

use super::{Fallible, session};
use anabranch_train::{
    Initializer, Optimizer, Partitioner, Strategy, SyncMode, VariablePlacement, Variables,
};
use graph::{DType, PartialShape, Scope, Shape, Tensor};

#[test]
fn requests_for_one_name_return_one_variable() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let first = variables.get("w", DType::Float, &[2], &Initializer::Zeros);
    let second = variables.get("w", DType::Float, &[2], &Initializer::Zeros);
    assert_eq!((first.handle, variables.all().len()), (second.handle, 1));
    scope.finish()?;
    variables.get("w", DType::Float, &[3], &Initializer::Zeros);
    let error = scope.finish().err().ok_or("another shape was accepted")?.to_string();
    assert!(error.contains("variable 'w'") && error.contains("[2]") && error.contains("[3]"), "{error}");
    Ok(())
}

#[test]
fn parts_are_placed_round_robin_and_concatenated() -> Fallible {
    let root = Scope::new();
    let strategy = Strategy::ParameterServer {
        ps_tasks: 2,
        worker: 0,
        placement: VariablePlacement::RoundRobin,
        sync: SyncMode::Async,
    };
    let variables = Variables::new(&strategy.scopes(&root).1);
    let first = Initializer::GlorotUniform { seed: 4 };
    let embedding =
        variables.get_partitioned("e", DType::Float, &[10, 4], &first, Partitioner::fixed_size(3));
    let again = variables.get_partitioned("e", DType::Float, &[10, 4], &first, Partitioner::fixed_size(3));
    assert_eq!(embedding.value, again.value);
    assert_eq!(root.shape(embedding.value), PartialShape::from([Some(10), Some(4)]));
    let parts: Vec<_> = embedding.parts.iter().map(|p| (&*p.name, p.shape.dims()[0])).collect();
    assert_eq!(parts, [("e/part_0", 4), ("e/part_1", 3), ("e/part_2", 3)]);
    let graph = root.finish()?;
    let devices: Vec<_> = embedding.parts.iter().map(|p| &*graph.node(p.handle.node).device).collect();
    assert_eq!(devices, [0, 1, 0].map(|task| format!("/job:ps/task:{task}/device:CPU:0")));
    Ok(())
}

#[test]
fn parts_are_initialised_like_the_whole() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    let numbers: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let whole = Tensor::from_slice(&numbers, Shape::new(&[2, 6])?)?;
    let by_columns = Partitioner::FixedSize { shards: 4, axis: 1 };
    let given = Initializer::Value(whole);
    let given = variables.get_partitioned("given", DType::Float, &[2, 6], &given, by_columns);
    let drawn = Initializer::GlorotUniform { seed: 4 };
    let drawn =
        variables.get_partitioned("drawn", DType::Float, &[300, 300], &drawn, Partitioner::fixed_size(2));
    let initialize = variables.initializer();
    let session = session(scope.finish()?, 1)?;
    session.run(&[], &[], &[initialize])?;
    let values = session.run(&[], &[given.value, drawn.value], &[])?;
    assert_eq!(values[0].values::<f32>()?, numbers);
    let drawn = values[1].values::<f32>()?;
    let largest = drawn.iter().fold(0.0f32, |most, v| most.max(v.abs()));
    assert!((largest - 0.1).abs() < 1e-3, "the range is not that of the whole: {largest}");
    assert_ne!(drawn[..300], drawn[150 * 300..][..300], "the parts are the same");
    Ok(())
}

#[test]
fn parts_train_like_the_whole() -> Fallible {
    let trained = |partitioner: Option<Partitioner>| -> Fallible<Vec<f32>> {
        let scope = Scope::new();
        let variables = Variables::new(&scope);
        let first = Initializer::Constant(1.0);
        let value = match partitioner {
            None => variables.get("w", DType::Float, &[5], &first).value,
            Some(by) => variables.get_partitioned("w", DType::Float, &[5], &first, by).value,
        };
        let optimizer = Optimizer::gradient_descent(0.125);
        let training = Strategy::Local.minimize(&scope, &variables, &optimizer, &[], |scope, _, _| {
            let target = scope.constant_vector(&[0.0f32, 1.0, 2.0, 3.0, 4.0]);
            scope.sum(scope.square(scope.sub(value, target)), &[0], false)
        })?;
        let session = session(scope.finish()?, 1)?;
        session.run(&[], &[], &[training.initialize])?;
        for _ in 0..3 {
            session.run(&[], &[], &[training.train])?;
        }
        Ok(session.run(&[], &[value], &[])?[0].values::<f32>()?.to_vec())
    };
    let whole = trained(None)?;
    assert_ne!(whole, [1.0; 5]);
    assert_eq!(trained(Some(Partitioner::fixed_size(2)))?, whole);
    // With more parts than rows, each part has one row.
    assert_eq!(trained(Some(Partitioner::fixed_size(9)))?, whole);
    Ok(())
}

#[test]
fn a_scalar_cannot_be_partitioned() -> Fallible {
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    variables.get_partitioned("s", DType::Float, &[], &Initializer::Zeros, Partitioner::fixed_size(2));
    let error = scope.finish().err().ok_or("a scalar was partitioned")?.to_string();
    assert!(error.contains("variable 's'"), "{error}");
    Ok(())
}
