//! The command, Python clients, examples and models, tested as whole programs. All tests are in one program, which is
//! linked once and whose tests share the processors.

mod checkpoint_command;
mod clients;
mod collectives;
mod command;
mod demo;
mod docs;
#[path = "../../examples/models/mod.rs"]
mod example_models;
mod examples;
mod gpu_suite;
mod gradients;
mod guide_commands;
mod joint_training;
mod launchers;
mod messages;
mod models;
mod ops;
#[cfg(feature = "store-s3")]
mod stores;
mod tensorboard;
mod tensorflow;
mod waiting_ops;

#[path = "../support/gradient_cases.rs"]
mod gradient_cases;
#[path = "../support/neural_gradient_cases.rs"]
mod neural_gradient_cases;
#[path = "../support/mod.rs"]
mod support;
