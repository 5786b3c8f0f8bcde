//! Collectives between the devices of workers.

use super::cluster::{LONG, Session, Task, Test, cluster};
use graph::builder::CollectiveReduction;
use graph::{DType, Scope};
use std::time::{Duration, Instant};

const TASKS: u32 = 2;
const DEVICES: u32 = 32;

/// Waits until the tasks send tensors to each other over links.
async fn wait_for_links(tasks: &[Task]) {
    let deadline = Instant::now() + LONG;
    while tasks.iter().any(|task| task.worker.links() != (1, 1)) {
        assert!(Instant::now() < deadline, "the links do not come up");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_members_make_no_call_in_the_steps_after_the_first() -> Test {
    let tasks = cluster(TASKS, |config| config.cpu_devices = DEVICES)?;
    let session = Session::remote(&tasks).await?;
    let scope = Scope::new();
    let at = |task, device| scope.device(&format!("/job:w/replica:0/task:{task}/device:CPU:{device}"));
    let x = at(0, 0).placeholder("x", DType::Float, graph::PartialShape::scalar());
    let places = (0..TASKS).flat_map(|task| (0..DEVICES).map(move |device| (task, device)));
    let sums: Vec<_> = places
        .map(|(task, device)| {
            let at = at(task, device);
            let group = at.collective_group((TASKS * DEVICES) as i32, 5);
            let own = if (task, device) == (0, 0) { x } else { at.constant(1.0f32) };
            at.all_reduce(own, group.instance(at.constant(9)), CollectiveReduction::Sum)
        })
        .collect();
    let graph = scope.finish()?;
    let names: Vec<String> = sums.iter().map(|sum| graph.node(sum.node).name.to_string()).collect();
    let targets: Vec<&str> = names.iter().map(String::as_str).collect();
    let registered = session.register(&graph, &["x"], &[targets[0]], &targets[1..]).await?;
    let mut expected_calls: Vec<String> = Vec::new();
    for step in 1..5i64 {
        tasks.iter().for_each(|task| task.calls.lock().clear());
        let feed = graph::Tensor::scalar(step as f32);
        let values =
            session.run(&registered, step, &[("x:0", feed)], &[&format!("{}:0", targets[0])]).await?;
        assert_eq!(values[0].item::<f32>()?, step as f32 + 63.0);
        let mut calls: Vec<String> = tasks.iter().flat_map(|task| task.calls.lock().clone()).collect();
        calls.sort();
        let has = |method: &str| calls.iter().any(|call| call.ends_with(method));
        match step {
            1 => {
                assert!(has("/CompleteGroup") && has("/CompleteInstance"), "{calls:?}");
                wait_for_links(&tasks).await;
            }
            2 => expected_calls = calls,
            _ => assert_eq!(calls, expected_calls),
        }
    }
    // The master makes only these calls: it runs each task's part and cleans it up.
    let is_master = |call: &&String| call.ends_with("/RunGraph") || call.ends_with("/CleanupGraph");
    assert_eq!(expected_calls.iter().filter(is_master).count(), expected_calls.len(), "{expected_calls:?}");
    Ok(())
}
