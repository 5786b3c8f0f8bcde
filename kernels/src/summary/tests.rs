//! Compares summaries with the bytes that TensorFlow writes.

use crate::testing::run_op;
use device::Result;
use graph::{AttrValue, Code, DType, Shape, Tensor};

fn summary(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Vec<u8>> {
    Ok(run_op(op, inputs, attrs)?[0].as_strings()?[0].to_vec())
}

fn float() -> (&'static str, AttrValue) {
    ("T", DType::Float.into())
}

#[test]
fn scalar_summaries_are_merged() -> Result<()> {
    let a = summary("ScalarSummary", &["a".into(), 1.5f32.into()], &[float()])?;
    assert_eq!(a, b"\n\x08\n\x01a\x15\x00\x00\xc0?");
    let tags = Tensor::strings(vec!["a".into(), "b".into()], Shape::new(&[2])?)?;
    let both = summary("ScalarSummary", &[tags, Tensor::try_from([0f32, 1.0])?], &[float()])?;
    assert_eq!(both, b"\n\x08\n\x01a\x15\x00\x00\x00\x00\n\x08\n\x01b\x15\x00\x00\x80?");
    let wrong = summary("ScalarSummary", &["a".into(), Tensor::try_from([1f32, 2.0])?], &[float()]);
    let text = "tags and values are not the same shape: [] != [2] (tag 'a')";
    assert_eq!(wrong.map_err(|e| e.to_string()), Err(text.to_owned()));
    let b = summary("ScalarSummary", &["b".into(), 2i64.into()], &[("T", DType::Int64.into())])?;
    let inputs = [Tensor::string(a.clone()), Tensor::string(b.clone())];
    assert_eq!(summary("MergeSummary", &inputs, &[("N", 2i64.into())])?, [a.clone(), b].concat());
    let twice =
        summary("MergeSummary", &[Tensor::string(a.clone()), Tensor::string(a)], &[("N", 2i64.into())]);
    assert_eq!(
        twice.map_err(|e| (e.code(), e.to_string())),
        Err((Code::InvalidArgument, "Duplicate tag a found in summary inputs ".into()))
    );
    assert!(summary("MergeSummary", &["junk".into()], &[("N", 1i64.into())]).is_err());
    Ok(())
}

#[test]
fn histograms_have_tensorflows_buckets() -> Result<()> {
    let values = Tensor::try_from([1f32, 2.0, 3.0, -5.0, 0.0])?;
    let bytes = summary("HistogramSummary", &["h".into(), values], &[float()])?;
    let start = b"\n\xe7\x01\n\x01h*\xe1\x01\t\x00\x00\x00\x00\x00\x00\x14\xc0\x11\x00\x00\x00\x00\x00\x00\x08@\x19\x00\
        \x00\x00\x00\x00\x00\x14@!\x00\x00\x00\x00\x00\x00\xf0?)\x00\x00\x00\x00\x00\x80C@2X\xd8\xb2v\xa95f\x14\xc0!\xd1\
        \x0e\x9av\x8b\x12\xc0\x00\x00\x00\x00\x00\x00\x00\x00\x11\xea-\x81\x99\x97q=\x08\x99i\x19\x15Z\xed?+\x14\xfa\xcd\
        \xbe$\xf0?";
    assert_eq!(bytes[..start.len()], start[..]);
    let empty = summary(
        "HistogramSummary",
        &["h".into(), Tensor::zeros(DType::Float, Shape::new(&[0])?)?],
        &[float()],
    )?;
    let expected = b"\n+\n\x01h*&\t\xff\xff\xff\xff\xff\xff\xef\x7f\x11\xff\xff\xff\xff\xff\xff\xef\xff2\x08\xff\xff\xff\
        \xff\xff\xff\xef\x7f:\x08\x00\x00\x00\x00\x00\x00\x00\x00";
    assert_eq!(empty, expected);
    let nan = summary("HistogramSummary", &["h".into(), f32::NAN.into()], &[float()]);
    assert_eq!(nan.map_err(|e| e.to_string()), Err("Nan in summary histogram for: test".into()));
    Ok(())
}

#[test]
fn images_are_stretched_and_bad_pixels_marked() -> Result<()> {
    let pixels = |values: &[f32]| -> Result<Vec<u8>> {
        let batch = Tensor::from_slice(values, Shape::new(&[1, 2, 2, 3])?)?;
        let images = super::image::encode_all(&batch, 3, &[255, 0, 0, 255])?;
        let mut proto = checkpoint::proto::Writer::new();
        images[0].write(&mut proto);
        let bytes = proto.finish();
        let png = checkpoint::proto::Fields::of(&bytes).flatten().find(|(n, _)| *n == 4);
        let png = png.and_then(|(_, field)| field.bytes().ok()).unwrap_or_default().to_vec();
        let read = || -> Result<Vec<u8>, png::DecodingError> {
            let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info()?;
            let mut out = vec![0; 12];
            reader.next_frame(&mut out)?;
            Ok(out)
        };
        read().map_err(|e| device::Error::internal(e.to_string()))
    };
    let ramp: Vec<f32> = (0..12).map(|i| i as f32 / 11.0).collect();
    assert_eq!(pixels(&ramp)?, [0, 23, 46, 69, 92, 115, 139, 162, 185, 208, 231, 255]);
    let signed: Vec<f32> = (0..12).map(|i| -3.0 + 4.0 * i as f32 / 11.0).collect();
    assert_eq!(pixels(&signed)?, [1, 16, 31, 47, 62, 77, 93, 108, 124, 139, 154, 170]);
    let bad = [1.0, 2.0, f32::NAN, 4.0, 5.0, 6.0, 7.0, f32::INFINITY, 9.0, 10.0, 11.0, 12.0];
    assert_eq!(pixels(&bad)?, [255, 0, 0, 85, 106, 127, 255, 0, 0, 212, 233, 255]);
    assert_eq!(pixels(&[0.0; 12])?, [0; 12]);
    Ok(())
}

#[test]
fn audio_is_a_wav_file() -> Result<()> {
    let samples = Tensor::try_from([[0f32, 0.5, -0.5, 1.0, -1.0, 1.5, 1e-5, 0.99999]])?;
    let bytes = summary("AudioSummaryV2", &["a".into(), samples, 44100.7f32.into()], &[])?;
    let expected = b"\n_\n\ta/audio/02R\r\xb3D,G\x10\x01\x18\x08\"<RIFF4\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\
        \x00E\xac\x00\x00\x8aX\x01\x00\x02\x00\x10\x00data\x10\x00\x00\x00\x00\x00\x00@\x00\xc0\xff\x7f\x00\x80\xff\x7f\
        \x00\x00\xff\x7f*\taudio/wav";
    assert_eq!(bytes, expected);
    let slow = summary("AudioSummaryV2", &["a".into(), Tensor::try_from([[0f32]])?, 0.3f32.into()], &[])?;
    assert!(slow.windows(8).any(|bytes| bytes == b"\x01\0\0\0\x02\0\0\0"), "a rate of 1 at least: {slow:?}");
    let flat = Tensor::try_from([0f32, 1.0])?;
    assert!(summary("AudioSummaryV2", &["a".into(), flat, 1f32.into()], &[]).is_err());
    Ok(())
}

#[test]
fn tensor_summaries_contain_the_whole_tensor() -> Result<()> {
    let inputs = ["tt".into(), Tensor::from(1f32), Tensor::from("")];
    let bytes = summary("TensorSummaryV2", &inputs, &[float()])?;
    assert_eq!(bytes, b"\n\x12\n\x02ttB\n\x08\x01\x12\x00\"\x04\x00\x00\x80?J\x00");
    let bytes = summary("TensorSummary", &inputs[1..2], &[float()])?;
    assert_eq!(bytes, b"\n\x12:\x04testB\n\x08\x01\x12\x00\"\x04\x00\x00\x80?");
    Ok(())
}
