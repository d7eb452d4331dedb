"""Import paths that scripts for AMCT use; everything here lives elsewhere."""
