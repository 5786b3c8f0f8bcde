//! The command `anabranch ckpt`.

use crate::support::folder::Folder;
use crate::support::{Fallible, python};
use anabranch::graph::{Shape, Tensor};
use checkpoint::bundle::{self, Writer};
use std::fs;
use std::process::{Command, Output};

fn ckpt(args: &[&str]) -> Fallible<Output> {
    Ok(Command::new(env!("CARGO_BIN_EXE_anabranch")).arg("ckpt").args(args).output()?)
}

/// Runs `anabranch ckpt` with `args`, which must succeed, and returns its standard output.
fn output_of(args: &[&str]) -> Fallible<String> {
    python::run(Command::new(env!("CARGO_BIN_EXE_anabranch")).arg("ckpt").args(args))
}

/// Writes a checkpoint with a matrix, whose elements are multiples of `scale`, and a counter.
fn save(prefix: &str, scale: f32) -> Fallible {
    let numbers: Vec<f32> = (0..6).map(|i| i as f32 * scale).collect();
    let mut writer = Writer::create(prefix)?;
    writer.add(b"layer/w", &Tensor::from_slice(&numbers, Shape::new(&[2, 3])?)?)?;
    writer.add(b"global_step", &Tensor::scalar(7i64))?;
    Ok(writer.finish()?)
}

#[test]
fn list_marks_incomplete_checkpoints() -> Fallible {
    let folder = Folder::new("ckpt-list")?;
    for (step, scale) in [(9, 1.0), (10, 2.0)] {
        save(&folder.file(&format!("model.ckpt-{step}")), scale)?;
    }
    let listed = output_of(&["list", &folder.file("")])?;
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines, ["model.ckpt-9: 2 tensors, 32 B", "model.ckpt-10: 2 tensors, 32 B (newest)"]);
    fs::write(bundle::data_file(folder.file("model.ckpt-10"), 0, 1), "short")?;
    let listed = output_of(&["list", &folder.file("")])?;
    assert!(listed.contains("model.ckpt-9: 2 tensors, 32 B (newest)"), "{listed}");
    assert!(listed.contains("model.ckpt-10: not whole: "), "{listed}");
    Ok(())
}

#[test]
fn inspect_shows_tensors_and_checks_them() -> Fallible {
    let folder = Folder::new("ckpt-inspect")?;
    let prefix = folder.file("m-1");
    save(&prefix, 1.0)?;
    let shown = output_of(&["inspect", &prefix, "--verify", "--values", "global_step"])?;
    for part in ["layer/w  float [2,3]  24 B", "2 tensors, 32 B", "checksums are right", "global_step = 7"] {
        assert!(shown.contains(part), "no '{part}' in {shown}");
    }
    let data = bundle::data_file(&prefix, 0, 1);
    let mut bytes = fs::read(&data)?;
    bytes[3] ^= 1;
    fs::write(&data, bytes)?;
    let refused = ckpt(&["inspect", &format!("{prefix}.index"), "--verify"])?;
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Checksum"), "{refused:?}");
    Ok(())
}

#[test]
fn diff_reports_the_tensors_that_differ() -> Fallible {
    let folder = Folder::new("ckpt-diff")?;
    let (a, b) = (folder.file("a"), folder.file("b"));
    save(&a, 1.0)?;
    save(&b, 2.0)?;
    assert_eq!(output_of(&["diff", &a, &a])?, "0 of 2 tensors differ\n");
    let different = ckpt(&["diff", &a, &b])?;
    assert_eq!(different.status.code(), Some(1));
    let text = String::from_utf8_lossy(&different.stdout).into_owned();
    assert_eq!(text, "layer/w: values differ by 5e0 at most\n1 of 2 tensors differ\n");
    Ok(())
}

#[test]
fn conversion_to_another_format_and_back_is_lossless() -> Fallible {
    let folder = Folder::new("ckpt-convert")?;
    let first = folder.file("first");
    save(&first, 0.5)?;
    for format in ["safetensors", "npz"] {
        let (file, back) = (folder.file(&format!("x.{format}")), folder.file(format));
        output_of(&["convert", &first, &file])?;
        output_of(&["convert", &file, &back])?;
        assert_eq!(output_of(&["diff", &first, &back])?, "0 of 2 tensors differ\n", "{format}");
    }
    // NumPy must read the converted file, and the command must read a compressed file that NumPy writes.
    let script = "import sys, numpy as np; x = dict(np.load(sys.argv[1])); np.savez_compressed(sys.argv[2], **x); print(x['layer/w'].tolist(), x['global_step'])";
    let (file, again) = (folder.file("x.npz"), folder.file("again.npz"));
    let printed = python::run(Command::new(python::interpreter()?).args(["-c", script, &file, &again]))?;
    assert_eq!(printed.trim(), "[[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]] 7");
    output_of(&["convert", &again, &folder.file("again")])?;
    assert_eq!(output_of(&["diff", &first, &folder.file("again")])?, "0 of 2 tensors differ\n");
    fs::write(&file, "rubbish")?;
    assert!(!ckpt(&["convert", &file, &folder.file("no")])?.status.success());
    Ok(())
}
