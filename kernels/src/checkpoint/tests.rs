//! Tests of saving and restoring through the ops.

use crate::testing::{TempDir, run_op};
use bytes::Bytes;
use device::Result;
use graph::{AttrValue, Code, DType, Shape, Tensor};

fn strings(values: &[&str]) -> Result<Tensor> {
    let all = values.iter().map(|v| Bytes::copy_from_slice(v.as_bytes())).collect();
    Ok(Tensor::strings(all, Shape::new(&[values.len()])?)?)
}

fn save(prefix: &str, names: &[&str], parts: &[&str], tensors: &[Tensor]) -> Result<()> {
    let inputs = [&[Tensor::from(prefix), strings(names)?, strings(parts)?], tensors].concat();
    let types: Vec<DType> = tensors.iter().map(Tensor::dtype).collect();
    run_op("SaveV2", &inputs, &[("dtypes", types.into())]).map(|_| ())
}

fn restore(prefix: &str, names: &[&str], parts: &[&str], types: &[DType]) -> Result<Vec<Tensor>> {
    let inputs = [Tensor::from(prefix), strings(names)?, strings(parts)?];
    run_op("RestoreV2", &inputs, &[("dtypes", types.to_vec().into())])
}

fn halves() -> Result<[Tensor; 2]> {
    Ok([Tensor::try_from([[0f32, 1.0], [2.0, 3.0]])?, Tensor::try_from([[4f32, 5.0], [6.0, 7.0]])?])
}

#[test]
fn saved_slices_are_restored_by_other_slices() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = format!("{}/model", dir.path().display());
    let [upper, lower] = halves()?;
    let tensors = [upper, lower, "text".into()];
    save(&prefix, &["w", "w", "s"], &["4 2 0,2:-", "4 2 2,2:-", ""], &tensors)?;
    let types = [DType::Float, DType::Float, DType::String];
    let got = restore(&prefix, &["w", "w", "s"], &["4 2 1,2:-", "", ""], &types)?;
    assert_eq!(got[0], Tensor::try_from([[2f32, 3.0], [4.0, 5.0]])?);
    assert_eq!(got[1].shape(), &Shape::new(&[4, 2])?);
    assert_eq!(got[2], Tensor::from("text"));
    Ok(())
}

#[test]
fn failures_have_the_messages_of_tensorflow() -> Result<()> {
    let dir = TempDir::new()?;
    let prefix = format!("{}/model", dir.path().display());
    let outcome = |result: Result<Vec<Tensor>>| result.map(|_| ()).map_err(|e| (e.code(), e.to_string()));
    let missing =
        format!("Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {prefix}");
    assert_eq!(outcome(restore(&prefix, &["w"], &[""], &[DType::Float])), Err((Code::NotFound, missing)));
    save(&prefix, &["w"], &[""], &[1f32.into()])?;
    let other = outcome(restore(&prefix, &["w"], &[""], &[DType::Int32]));
    let text = "tensor_name = w; expected dtype int32 does not equal original dtype float";
    assert_eq!(other, Err((Code::InvalidArgument, text.into())));
    let absent = outcome(restore(&prefix, &["z"], &[""], &[DType::Float]));
    assert_eq!(absent, Err((Code::NotFound, "Key z not found in checkpoint".into())));
    let nowhere = format!("{prefix}/a/b/c");
    assert_eq!(save(&nowhere, &["w"], &[""], &[1f32.into()]).map_err(|e| e.code()), Err(Code::NotFound));
    assert!(save(&prefix, &["w"], &["4 2 0,1:-"], &[1f32.into()]).is_err());
    assert!(save(&prefix, &["w", "v"], &["", ""], &[1f32.into()]).is_err());
    assert!(save(&prefix, &["w"], &["", ""], &[1f32.into()]).is_err());
    Ok(())
}

#[test]
fn saving_without_a_snapshot_fails() -> Result<()> {
    let inputs = [Tensor::from("/nowhere/model"), strings(&["w"])?, strings(&[""])?, true.into()];
    let saved = run_op("SaveSnapshot", &inputs, &[("shared_name", "these".into())]);
    let saved = saved.map_err(|e| (e.code(), e.to_string()));
    let text = "there is no snapshot in these: run its KeepSnapshot before each save";
    assert_eq!(saved, Err((Code::FailedPrecondition, text.to_owned())));
    Ok(())
}

#[test]
fn shards_are_merged() -> Result<()> {
    let dir = TempDir::new()?;
    let root = dir.path().display();
    let mut parts = Vec::new();
    for (i, half) in halves()?.into_iter().enumerate() {
        let inputs = [Tensor::from(&*format!("{root}/model_temp/part")), (i as i32).into(), 2i32.into()];
        let name = run_op("ShardedFilename", &inputs, &[])?.remove(0);
        let name = String::from_utf8_lossy(&name.as_strings()?[0]).into_owned();
        save(&name, &["w"], &[["4 2 0,2:-", "4 2 2,2:-"][i]], &[half])?;
        parts.push(name);
    }
    assert!(parts[1].ends_with("part-00001-of-00002"));
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let destination = format!("{root}/model");
    run_op("MergeV2Checkpoints", &[strings(&parts)?, Tensor::from(&*destination)], &[])?;
    let whole = restore(&destination, &["w"], &[""], &[DType::Float])?;
    assert_eq!(whole[0].values::<f32>()?, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    assert!(!dir.path().join("model_temp").exists());
    Ok(())
}

#[test]
fn v1_checkpoints_are_written_and_read() -> Result<()> {
    let dir = TempDir::new()?;
    let path = format!("{}/old", dir.path().display());
    let [upper, lower] = halves()?;
    let types: AttrValue = vec![DType::Float, DType::Float].into();
    let inputs =
        [path.as_str().into(), strings(&["w", "w"])?, strings(&["4 2 0,2:-", "4 2 2,2:-"])?, upper, lower];
    run_op("SaveSlices", &inputs, &[("T", types)])?;
    let middle = Tensor::try_from([[2f32, 3.0], [4.0, 5.0]])?;
    let inputs = [Tensor::from(path.as_str()), "w".into(), "4 2 1,2:-".into()];
    assert_eq!(run_op("RestoreSlice", &inputs, &[("dt", DType::Float.into())])?[0], middle);
    let whole = run_op("Restore", &inputs[..2], &[("dt", DType::Float.into())])?;
    assert_eq!(whole[0].values::<f32>()?.len(), 8);
    assert!(run_op("Restore", &inputs[..2], &[("dt", DType::Int32.into())]).is_err());
    assert_eq!(restore(&path, &["w"], &["4 2 1,2:-"], &[DType::Float])?, [middle]);
    let inputs = [path.as_str().into(), strings(&["a"])?, 7i64.into()];
    run_op("Save", &inputs, &[("T", vec![DType::Int64].into())])?;
    assert_eq!(restore(&path, &["a"], &[""], &[DType::Int64])?, [Tensor::from(7i64)]);
    Ok(())
}
