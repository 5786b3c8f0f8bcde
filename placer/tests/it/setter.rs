//! Tests of device functions and variable partitioners against results of TensorFlow.

use crate::support::Result;
use anabranch_placer::{
    GreedyLoadBalancing, Partitioner, PsStrategy, RandomTask, ReplicaDeviceSetter, byte_size_load,
    replica_device_setter, shards,
};
use expect_test::expect;
use graph::{DType, DeviceSpec, Node, PartialShape, Scope, Shape, ops};

fn variable(name: &str, device: &str) -> Result<Node> {
    let mut node = Node::new(name, ops::lookup("VariableV2").ok_or("no op")?);
    node.device = device.into();
    Ok(node)
}

/// Returns the merged devices of eight variables with various requested devices, and of a NoOp at the end.
fn devices(setter: ReplicaDeviceSetter) -> Result<Vec<String>> {
    let function = replica_device_setter(setter).ok_or("no function")?;
    let asked = ["", "", "", "/job:worker/task:1", "/job:ps/task:7", "/cpu:0", "/task:5", ""];
    let mut all = Vec::new();
    let mut place = |node: &Node| -> Result<()> {
        all.push(DeviceSpec::parse(&node.device)?.or(&function(node)).to_string());
        Ok(())
    };
    for (i, device) in asked.iter().enumerate() {
        place(&variable(&format!("v{i}"), device)?)?;
    }
    let mut other = Node::new("k", ops::lookup("NoOp").ok_or("no op")?);
    other.device = "/cpu:0".into();
    place(&other)?;
    Ok(all)
}

fn two_servers() -> Result<ReplicaDeviceSetter> {
    let worker_device = DeviceSpec::parse("/job:worker/task:3")?;
    Ok(ReplicaDeviceSetter { ps_tasks: 2, worker_device, ..ReplicaDeviceSetter::default() })
}

#[test]
fn variables_are_assigned_round_robin_even_if_a_task_is_requested() -> Result<()> {
    assert_eq!(
        devices(two_servers()?)?,
        [
            "/job:ps/task:0",
            "/job:ps/task:1",
            "/job:ps/task:0",
            "/job:worker/task:1",
            "/job:ps/task:7",
            "/job:ps/task:0/device:CPU:0",
            "/job:ps/task:5",
            "/job:ps/task:0",
            "/job:worker/task:3/device:CPU:0",
        ]
    );
    Ok(())
}

#[test]
fn a_requested_device_is_unchanged_without_merging() -> Result<()> {
    assert_eq!(
        devices(ReplicaDeviceSetter { merge_devices: false, ..two_servers()? })?,
        [
            "/job:ps/task:0",
            "/job:ps/task:1",
            "/job:ps/task:0",
            "/job:worker/task:1",
            "/job:ps/task:7",
            "/device:CPU:0",
            "/task:5",
            "/job:ps/task:1",
            "/device:CPU:0",
        ]
    );
    Ok(())
}

#[test]
fn the_cluster_gives_the_number_of_parameter_servers() {
    let setter = ReplicaDeviceSetter::default().with_cluster([("worker", 4), ("ps", 3)]);
    assert_eq!(setter.ps_tasks, 3);
    assert!(replica_device_setter(ReplicaDeviceSetter::default().with_cluster([("worker", 4)])).is_none());
}

#[test]
fn a_scope_calls_the_device_function() -> Result<()> {
    let function = replica_device_setter(two_servers()?).ok_or("no function")?;
    let scope = Scope::new().device_fn(function);
    for _ in 0..3 {
        scope.op("VariableV2").attr("dtype", DType::Float).attr("shape", PartialShape::scalar()).node();
    }
    scope.op("NoOp").node();
    let graph = scope.finish()?;
    let devices: Vec<&str> = graph.nodes().map(|(_, n)| &*n.device).collect();
    assert_eq!(devices, ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:0", "/job:worker/task:3"]);
    Ok(())
}

#[test]
fn the_greedy_strategy_takes_the_least_loaded_task() -> Result<()> {
    let strategy = GreedyLoadBalancing::new(3, byte_size_load);
    let mut tasks = Vec::new();
    for (dims, dtype) in [
        (&[10, 10][..], DType::Float),
        (&[30], DType::Double),
        (&[5], DType::Float),
        (&[100], DType::Int8),
        (&[100], DType::Int8),
        (&[1000], DType::Half),
        (&[1], DType::Float),
    ] {
        let node = variable("v", "")?
            .with_attr("dtype", dtype)
            .with_attr("shape", PartialShape::of_dims(dims.iter().map(|&d| Some(d))));
        tasks.push(strategy.task(&node));
    }
    assert_eq!(tasks, [0, 1, 2, 2, 2, 2, 1]);
    assert_eq!(strategy.loads(), [400.0, 244.0, 2220.0]);
    Ok(())
}

#[test]
fn the_random_strategy_depends_on_name_and_seed() -> Result<()> {
    for (name, seed, task) in
        [("v", 0, 2), ("v", 7, 2), ("w/kernel", 0, 2), ("w/kernel", 7, 1), ("x", 0, 4), ("x", 7, 0)]
    {
        assert_eq!(RandomTask::new(5, seed).task(&variable(name, "")?), task, "{name} {seed}");
    }
    Ok(())
}

/// Compares, for several shapes, the number of shards that each partitioner gives along its axis with TensorFlow's
/// number.
#[test]
fn partitioners_give_tensorflows_shard_counts() -> Result<()> {
    let axis = |max_shard_bytes, axis, max_shards| Partitioner::AxisSize {
        max_shard_bytes,
        axis,
        bytes_per_string: 16,
        max_shards,
    };
    let min_max = |max_partitions, axis, min_slice_size| Partitioner::MinMax {
        max_partitions,
        axis,
        min_slice_size,
        bytes_per_string: 16,
    };
    let along_first = [
        Partitioner::fixed_size(4),
        axis(1 << 20, 0, None),
        axis(100, 0, None),
        axis(64 << 10, 0, Some(3)),
        axis(1, 0, None),
        min_max(16, 0, 256 << 10),
        min_max(4, 0, 256 << 10),
        min_max(100, 0, 1000),
        min_max(8, 0, 7),
    ];
    let along_second =
        [Partitioner::FixedSize { shards: 4, axis: 1 }, axis(100, 1, None), min_max(16, 1, 1000)];
    for (dims, dtype, first, second) in [
        (&[1024, 1024][..], DType::Float, [4, 4, 1024, 3, 1024, 16, 4, 100, 8], [4, 1024, 16]),
        (&[10, 3], DType::Double, [4, 1, 3, 1, 10, 1, 1, 1, 8], [3, 3, 1]),
        (&[1000, 10], DType::String, [4, 1, 1000, 3, 1000, 1, 1, 100, 8], [4, 10, 10]),
        (&[5, 1000000], DType::Float, [4, 5, 5, 3, 5, 5, 4, 5, 5], [4, 200000, 16]),
        (&[1, 9], DType::Float, [1, 1, 1, 1, 1, 1, 1, 1, 1], [4, 1, 1]),
        (&[1000000, 16], DType::Half, [4, 31, 333334, 3, 1000000, 16, 4, 100, 8], [4, 16, 16]),
        (&[3, 4, 5], DType::Bool, [3, 1, 1, 1, 3, 1, 1, 1, 3], [4, 1, 1]),
    ] {
        let shape = Shape::new(dims)?;
        let counts = |all: &[Partitioner], axis: usize| -> Result<Vec<usize>> {
            let mut counts = Vec::new();
            for partitioner in all {
                let partitions = partitioner.partitions(&shape, dtype)?;
                assert_eq!(partitions.iter().product::<usize>(), partitions[axis]);
                counts.push(partitions[axis]);
            }
            Ok(counts)
        };
        assert_eq!(counts(&along_first, 0)?, first, "{shape}");
        assert_eq!(counts(&along_second, 1)?, second, "{shape}");
    }
    let vector = Shape::new(&[7])?;
    assert_eq!(Partitioner::fixed_size(4).partitions(&vector, DType::Int32)?, [4]);
    assert!(Partitioner::FixedSize { shards: 4, axis: 1 }.partitions(&vector, DType::Int32).is_err());
    assert!(axis(0, 0, None).partitions(&vector, DType::Int32).is_err());
    Ok(())
}

#[test]
fn the_first_shards_have_one_row_more() -> Result<()> {
    let all = shards(&Shape::new(&[10, 3])?, &[4, 1])?;
    let cut: Vec<_> = all.iter().map(|s| (&s.offset[..], &s.shape[..])).collect();
    let expected: [(&[usize], &[usize]); 4] =
        [(&[0, 0], &[3, 3]), (&[3, 0], &[3, 3]), (&[6, 0], &[2, 3]), (&[8, 0], &[2, 3])];
    assert_eq!(cut, expected);
    assert_eq!(shards(&Shape::new(&[10, 3])?, &[1, 1])?.len(), 1);
    let refusal = |partitions: &[usize]| -> Result<String> {
        let error = shards(&Shape::new(&[10, 3])?, partitions).err().ok_or("no error")?;
        Ok(error.to_string())
    };
    expect!["a variable can be cut along one axis only"].assert_eq(&refusal(&[2, 2])?);
    expect!["axis 1 of shape [10,3] cannot be cut into 4 shards"].assert_eq(&refusal(&[1, 4])?);
    Ok(())
}
