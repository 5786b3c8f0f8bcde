//! Tests that the generated code reads and writes bytes exchanged between TensorFlow processes.

use anabranch_proto::{
    google::protobuf::Any,
    pb::{
        AttrValue, DataType, MemoryStats, NodeDef, RecvBufRespExtra, RecvTensorResponse, TensorProto,
        TensorShapeProto, attr_value, error::Code, graph_debug_info::StackTrace, master_service_server,
        tensor_shape_proto::Dim, worker_service_server,
    },
};
use bytes::Bytes;
use prost::Message;

/// A RecvTensorResponse of TensorFlow with an int32 scalar 0.
const SCALAR: &[u8] = b"\x18\xc6\xca\x92\xe8\xd4\x96\x98\x03\x0a\x08\x08\x03\x22\x04\x00\x00\x00\x00";
/// A RecvTensorResponse of TensorFlow with a float tensor of shape [0, 3].
const EMPTY: &[u8] = b"\x0a\x0e\x08\x01\x12\x08\x12\x02\x08\x00\x12\x02\x08\x03\x22\x00";

#[test]
fn recv_tensor_responses_of_tensorflow_are_decoded() {
    let scalar = RecvTensorResponse::decode(SCALAR).expect("the peer's bytes");
    let expected = RecvTensorResponse {
        tensor: Some(TensorProto {
            dtype: DataType::DtInt32.into(),
            tensor_content: Bytes::from_static(&[0; 4]),
            ..Default::default()
        }),
        send_start_micros: scalar.send_start_micros,
        ..Default::default()
    };
    assert_eq!(scalar, expected);
    assert!(scalar.send_start_micros > 0);

    let empty = RecvTensorResponse::decode(EMPTY).expect("the peer's bytes").tensor.expect("a tensor");
    assert_eq!(empty.dtype(), DataType::DtFloat);
    assert_eq!(empty.tensor_shape, Some(shape(&[0, 3])));
    assert!(empty.tensor_content.is_empty());
}

/// The contents of a received tensor are not copied out of the receive buffer.
#[test]
fn received_contents_share_the_receive_buffer() {
    let content = Bytes::from(vec![7; 4096]);
    let sent = TensorProto { tensor_content: content.clone(), ..Default::default() };
    let received = Bytes::from(sent.encode_to_vec());
    let tensor = TensorProto::decode(received.clone()).expect("our own bytes");
    assert_eq!(tensor.tensor_content, content);
    assert!(received.as_ptr_range().contains(&tensor.tensor_content.as_ptr()));

    let extra = RecvBufRespExtra { tensor_content: vec![content.clone()] };
    let sent = Any { type_url: String::new(), value: extra.encode_to_vec().into() };
    let received = Bytes::from(sent.encode_to_vec());
    let any = Any::decode(received.clone()).expect("our own bytes");
    let extra = RecvBufRespExtra::decode(any.value).expect("our own bytes");
    assert_eq!(extra.tensor_content[0], content);
    assert!(received.as_ptr_range().contains(&extra.tensor_content[0].as_ptr()));
}

/// The entries of a map are encoded in the order of their keys, whatever the insertion order.
#[test]
fn maps_are_encoded_in_key_order() {
    let value = |i| AttrValue { value: Some(attr_value::Value::I(i)) };
    let node = |keys: [&str; 3]| NodeDef {
        attr: keys.map(|key| (key.to_owned(), value(key.len() as i64))).into(),
        ..Default::default()
    };
    let bytes = node(["T", "N_", "dtype"]).encode_to_vec();
    assert_eq!(bytes, node(["dtype", "T", "N_"]).encode_to_vec());
    let keys =
        [&b"N_"[..], b"T", b"dtype"].map(|key| bytes.windows(key.len()).position(|window| window == key));
    assert!(keys.is_sorted() && keys[0].is_some(), "{keys:?}");
}

#[test]
#[allow(deprecated)]
fn repeated_numbers_are_packed() {
    let stats = MemoryStats { device_persistent_tensor_alloc_ids: vec![1, 2], ..Default::default() };
    assert_eq!(stats.encode_to_vec(), [0x32, 2, 1, 2]);
    let trace = StackTrace { frame_id: vec![1], ..Default::default() };
    assert_eq!(trace.encode_to_vec(), [0x12, 8, 1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn services_have_tensorflows_names() {
    assert_eq!(master_service_server::SERVICE_NAME, "tensorflow.MasterService");
    assert_eq!(worker_service_server::SERVICE_NAME, "tensorflow.WorkerService");
}

/// Status codes in messages have the same numbers as gRPC's codes.
#[test]
fn status_codes_equal_grpc_codes() {
    for number in 0..=16 {
        let code = Code::try_from(number).expect("codes 0 to 16 are declared");
        let grpc = format!("{:?}", tonic::Code::from(number));
        assert_eq!(code.as_str_name().replace('_', "").to_lowercase(), grpc.to_lowercase());
    }
}

fn shape(sizes: &[i64]) -> TensorShapeProto {
    TensorShapeProto {
        dim: sizes.iter().map(|&size| Dim { size, name: String::new() }).collect(),
        unknown_rank: false,
    }
}
