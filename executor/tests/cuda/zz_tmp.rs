use super::Fallible;
use super::partition::Partition;
use super::recording::Recording;
use super::streams::Gpu;
use anabranch_executor::gpus::GpuOptions;
use graph::Graph;
use graph::passes;
use std::collections::BTreeMap;

#[test]
fn zz_counts() -> Fallible {
    for file in ["/tmp/lstm.txt", "/tmp/resnet.txt"] {
        let text = std::fs::read_to_string(file)?;
        let whole = Graph::from_text(&text)?;
        let options = GpuOptions { memory_fraction: 1.0, ..GpuOptions::default() };
        let gpu = Gpu::over(Recording::new(1 << 34), 0, &options)?;
        let find = |name: &str| whole.nodes().find(|(_, n)| &*n.name == name).map(|(id, _)| id).ok_or("none");
        let part = |name: &str| -> Fallible<Partition> {
            let graph = passes::prune(&whole, &[find(name)?])?;
            let graph = anabranch_executor::fuse(graph, &*gpu.device)?;
            Partition::new(&graph, &gpu.device)
        };
        let (init, step) = (part("group_2")?, part("group_3")?);
        init.step(&[], &[])?;
        gpu.driver.log();
        for i in 0..5 {
            step.step(&[], &[])?;
            let log = gpu.driver.log();
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for line in &log {
                let key: String = line.split_whitespace().next().unwrap_or("").chars().take(40).collect();
                *counts.entry(key).or_default() += 1;
            }
            let mut all: Vec<_> = counts.into_iter().collect();
            all.sort_by_key(|x| std::cmp::Reverse(x.1));
            println!("{file} step {i}: {} lines: {:?}", log.len(), &all[..all.len().min(40)]);
            if i == 4 {
                std::fs::write(format!("{file}.log"), log.join("\n"))?;
            }
        }
    }
    Ok(())
}
