"""What tests share: harnesses, stand-ins and cases, a folder for each folder of tests."""
